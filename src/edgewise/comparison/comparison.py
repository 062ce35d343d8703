"""`edgewise.compare`: a dense model beside its sparse twin, from the command line, from Python and in the demo alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedTokenizerBase

from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.find import find_circuits
from edgewise.circuits.result import CircuitResult
from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.core.results import Result
from edgewise.flow.collect import collect_flow
from edgewise.flow.config import FlowConfig
from edgewise.flow.result import Flows
from edgewise.maps.collect import collect_maps
from edgewise.maps.config import MapsConfig
from edgewise.maps.result import AttentionMaps
from edgewise.measure.evaluate import evaluate_models
from edgewise.measure.evaluation import Evaluation
from edgewise.models.loaded import LoadedModels, Model, load_models
from edgewise.plots.style import save_figure
from edgewise.reporting.page import ReportPage
from edgewise.reporting.page import report as write_report
from edgewise.tracing.config import TraceConfig
from edgewise.tracing.trace import trace
from edgewise.tracing.traces import Traces

R = TypeVar("R", bound=Result)


class Comparison:
    """One model, or a dense model and its twin, loaded once. Every analysis is a method and gives a result that can be
    saved, plotted and displayed; `report` puts all results so far on one page."""

    def __init__(self, models: LoadedModels):
        self.models = models
        self.results: dict[str, Result] = {}
        """Results so far, by the name of the folder that `report` saves them to."""

    def circuit(self, task: str = "copy", **settings: Any) -> CircuitResult:
        """The heads and edges that carry a task. `settings`: fields of `CircuitConfig`."""
        result = find_circuits(self.models, CircuitConfig(task=task, **settings))
        return self._keep(f"circuit-{Path(task).stem}", result)

    def maps(self, task: str = "copy", **settings: Any) -> AttentionMaps:
        """Attention maps of the heads that carry a task, taken from its circuit if that has been found already.
        `settings`: fields of `MapsConfig`."""
        circuit = self.results.get(f"circuit-{Path(task).stem}")
        config = MapsConfig(task=task, **settings)
        known = circuit if isinstance(circuit, CircuitResult) and config.heads is None else None
        return self._keep(f"maps-{Path(task).stem}", collect_maps(self.models, config, circuit=known))

    def flow(self, *prompts: str, **settings: Any) -> Flows:
        """Open attention edges on prompts. `settings`: fields of `FlowConfig`."""
        return self._keep(
            self._numbered("flow"), collect_flow(self.models, FlowConfig(prompt=prompts, **settings))
        )

    def trace(
        self, prompt: str, *, transcoders: Sequence[str | Path] | None = None, **settings: Any
    ) -> Traces:
        """One prediction, traced to features and the heads that carry them. `settings`: fields of `TraceConfig`."""
        result = trace(self.models, TraceConfig(prompt=prompt, **settings), transcoders=transcoders)
        return self._keep(self._numbered("trace"), result)

    def evaluate(self, data: Any = None, **settings: Any) -> Evaluation:
        """Held-out loss, density and edges per query of each model. `settings`: arguments of `evaluate_models`."""
        return self._keep(self._numbered("evaluation"), evaluate_models(self.models, data, **settings))

    def report(self, folder: str | Path = "runs/report") -> ReportPage:
        """Save all results so far with their figures into a folder, and write one interactive page of them, which a notebook
        shows in place."""
        if not self.results:
            raise EdgewiseError(
                "there is nothing to report yet: call circuit, maps, flow, trace or evaluate first"
            )
        for name, result in self.results.items():
            save_with_figure(result, Path(folder) / name)
        return write_report(folder)

    def _keep(self, name: str, result: R) -> R:
        self.results[name] = result
        return result

    def _numbered(self, kind: str) -> str:
        return f"{kind}-{1 + sum(name.startswith(f'{kind}-') for name in self.results)}"

    def __repr__(self) -> str:
        described = ", ".join(
            f"{name} ({kind})" for name, kind in zip(self.models.names, self.models.kinds, strict=True)
        )
        return f"Comparison({described}; {len(self.results)} results)"


def save_with_figure(result: Result, folder: Path, **style: Any) -> list[Path]:
    """Write a result and its figure (svg, pdf, png), which has the name of the result's JSON file."""
    path = result.save(folder)
    return [path, *save_figure(result.plot(**style), folder / result.figure_name)]


def compare(
    *models: Model,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    quiet: bool = False,
) -> Comparison:
    """Load one model, or a dense model and its sparse twin, to analyse them.

    >>> pair = edgewise.compare("pocket", "pocket-sparse")
    >>> pair.circuit("copy").plot()
    >>> pair.maps("copy"), pair.trace('The opposite of " large " is "')
    >>> pair.report("runs/pocket")

    Args:
        models: One or two names (see `edgewise.load`), folders or loaded models, the dense one first.
        tokenizer: Required with loaded models.
        device: Where to load to: "cpu", "cuda:1"; "auto" is a GPU if there is one, "split" spreads each model over all GPUs
            and main memory.
        dtype: In which precision, "bfloat16"; "auto" is the checkpoint's own.
        quiet: Show no progress.
    """
    loaded = load_models(
        models, tokenizer=tokenizer, device=device, dtype=dtype, display=Display(quiet=quiet)
    )
    return Comparison(loaded)
