"""What was found, as plain dataclasses that save themselves as JSON: every figure can be redrawn without a model."""

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgewise.core.errors import EdgewiseError, first_line

FILE = "circuit.json"


@dataclass(frozen=True)
class Curve:
    """Keep the best k, corrupt the rest."""

    counts: list[int]
    explained: list[float]
    """Share of the mean effect."""
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    """Quartiles, over prompts, of the share of each prompt's own effect."""


@dataclass(frozen=True)
class Found:
    """The smallest circuit of one kind that explains enough."""

    total: int
    """All there are."""
    needed: int
    """With one ranking for all prompts."""
    faithfulness: float
    """What those explain."""
    needed_per_prompt: list[int]
    """With each prompt's own ranking."""
    curve: Curve
    ranking: list[tuple[str, float]]
    """The most important first, each with its mean importance: for heads the mean share of the effect that it loses and
    restores, for edges their attribution."""

    @property
    def per_prompt(self) -> tuple[float, float]:
        """Mean and spread over prompts."""
        return _mean_and_spread(self.needed_per_prompt)


@dataclass(frozen=True)
class TokenEdgesFound:
    """Attention edges (head, query, key) of each prompt."""

    possible: list[int]
    open: list[int]
    used: list[int]


@dataclass(frozen=True)
class ModelCircuit:
    """One model's circuit on a task."""

    model: str
    kind: str
    """dense or sparse"""
    accuracy: float
    """Share of prompts whose answer scores above the wrong one."""
    clean_score: float
    corrupt_score: float
    prompts: int
    left_out: int
    """Prompts on which the model does not show the behaviour: their effect is below the floor."""
    warnings: list[str] = field(default_factory=list)
    heads: Found | None = None
    head_effects: dict[str, list[list[float]]] | None = None
    """Mean over prompts of `lost` and `restored`, [layers][heads]."""
    edges: Found | None = None
    kv_heads: list[int] | None = None
    """Of each layer: the "G" of an edge's name is one of these, and heads in its order share it."""
    head_head_edges: tuple[int, int] | None = None
    """Pairs of heads joined by the edges of the circuit, and all such pairs."""
    token_edges: TokenEdgesFound | None = None

    def counts(self) -> dict[str, float | None]:
        """The figures of merit: fewer is simpler."""
        token = self.token_edges
        return {
            "heads": None if self.heads is None else self.heads.needed,
            "heads_per_prompt": None if self.heads is None else self.heads.per_prompt[0],
            "edges": None if self.edges is None else self.edges.needed,
            "edges_per_prompt": None if self.edges is None else self.edges.per_prompt[0],
            "head_head_edges": None if self.head_head_edges is None else self.head_head_edges[0],
            "open_token_edges": None if token is None else statistics.fmean(token.open),
            "token_edges": None if token is None else statistics.fmean(token.used),
        }


@dataclass(frozen=True)
class CircuitResult:
    """Circuits of one task, in one model or in two."""

    task: str
    metric: str
    threshold: float
    seed: int
    method: str
    examples: list[dict[str, Any]]
    """The prompts used: clean, corrupt, answers, wrong."""
    models: list[ModelCircuit]

    @property
    def ratios(self) -> dict[str, float | None]:
        """How many times fewer the second model needs."""
        if len(self.models) != 2:
            return {}
        first, second = (model.counts() for model in self.models)
        return {key: _ratio(first[key], second[key]) for key in first}

    def to_dict(self) -> dict[str, Any]:
        content = asdict(self)
        for saved, model in zip(content["models"], self.models, strict=True):
            at = round(100 * self.threshold)
            for key, value in model.counts().items():
                saved["token_edges_open" if key == "open_token_edges" else f"{key}_at_{at}"] = value
        if len(self.models) == 2:
            content["ratios"] = self.ratios
        return content

    def save(self, folder: str | Path) -> Path:
        """Write circuit.json into a folder."""
        path = Path(folder) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> "CircuitResult":
        """Read what `save` wrote: the folder, or the file."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        try:
            content = json.loads(path.read_text())
            models = [_model(saved) for saved in content["models"]]
            own = {key: content[key] for key in cls.__dataclass_fields__ if key != "models"}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EdgewiseError(
                f"{path} holds no circuits that edgewise wrote: {first_line(error)}"
            ) from error
        return cls(**own, models=models)


def _model(saved: dict[str, Any]) -> ModelCircuit:
    own = {key: saved[key] for key in ModelCircuit.__dataclass_fields__ if key in saved}
    for key in ("heads", "edges"):
        if own[key] is not None:
            curve = Curve(**own[key].pop("curve"))
            ranking = [(name, value) for name, value in own[key].pop("ranking")]
            own[key] = Found(**own[key], curve=curve, ranking=ranking)
    if own["head_head_edges"] is not None:
        own["head_head_edges"] = tuple(own["head_head_edges"])
    if own["token_edges"] is not None:
        own["token_edges"] = TokenEdgesFound(**own["token_edges"])
    return ModelCircuit(**own)


def _ratio(first: float | None, second: float | None) -> float | None:
    return None if first is None or not second else first / second


def _mean_and_spread(values: list[int]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
