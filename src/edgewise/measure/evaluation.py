"""What `evaluate_models` measures, as a result: loss, density and edges of each model, saved and drawn."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from edgewise.core.files import is_folder, write_json
from edgewise.core.results import Result
from edgewise.core.schema import read_as
from edgewise.measure.dense_comparison import DenseComparison
from edgewise.measure.loss import Measured
from edgewise.measure.sinks import Sinks

FILE = "evaluation.json"

PerHead = list[list[float]]


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation(Result, Mapping[str, Measured]):
    """Loss, density and edges per query of one model, or of a dense model and its twin: a mapping of names to `Measured`."""

    drawn_by: ClassVar[str] = "edgewise.plots.evaluation:draw_evaluation"
    figure_name: ClassVar[str] = "evaluation"

    models: dict[str, Measured]

    def __getitem__(self, name: str) -> Measured:
        return self.models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def table(self) -> list[list[str]]:
        rows = [["model", "loss", "KL", "perplexity", "density", "edges per query", "heads closed"]]
        for name, measured in self.items():
            difference, kl = "", ""
            if (comparison := measured.against_dense) is not None:
                difference = f" ({comparison.delta_ce:+.4f} ± {comparison.delta_ce_error:.4f})"
                kl = f"{comparison.kl:.4f}"
            closed = f"{measured.heads_closed} of {measured.density_per_head.numel()}"
            density, edges = f"{measured.density:.2%}", f"{measured.edges_per_query:.2f}"
            loss, perplexity = f"{measured.ce:.4f}{difference}", f"{measured.perplexity:.3f}"
            rows.append([name, loss, kl, perplexity, density, edges, closed])
        return rows

    def to_dict(self) -> dict[str, Any]:
        """What `save` writes."""
        return {name: measured.to_dict() for name, measured in self.items()}

    def save(self, folder: str | Path) -> Path:
        """Write evaluation.json into a folder."""
        return write_json(Path(folder, FILE), self.to_dict(), indent=2)

    @classmethod
    def load(cls, path: str | Path) -> "Evaluation":
        """Read what `save` wrote: the folder, or the file."""
        file = Path(path, FILE) if is_folder(path) else Path(path)
        saved = read_as(dict[str, _SavedMeasured], file, "evaluation")
        return cls({name: measured.restored() for name, measured in saved.items()})


@dataclass(frozen=True)
class _SavedSinks:
    first_token_per_head: PerHead
    attention_per_head: PerHead


@dataclass(frozen=True)
class _SavedMeasured:
    ce: float
    tokens: int
    density_per_head: PerHead
    edges_per_query_per_head: PerHead
    sinks: _SavedSinks | None = None
    against_dense: DenseComparison | None = None

    def restored(self) -> Measured:
        sinks = None
        if self.sinks is not None:
            per_head = (self.sinks.first_token_per_head, self.sinks.attention_per_head)
            sinks = Sinks(*(torch.tensor(values) for values in per_head))
        density, edges = torch.tensor(self.density_per_head), torch.tensor(self.edges_per_query_per_head)
        return Measured(self.ce, density, edges, self.tokens, sinks, self.against_dense)
