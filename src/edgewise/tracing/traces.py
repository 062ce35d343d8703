"""The traces of one prompt in one model, or in a dense model and its sparse twin: saved, loaded and drawn together."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgewise.core.results import Result
from edgewise.tracing.export import write_graph
from edgewise.tracing.result import FILE, Trace

GRAPHS = "graphs"
_SAME_KIND = ("first", "second")
"""Subfolders of the traces of two models of the same kind."""
SUBFOLDERS = ("dense", "sparse", *_SAME_KIND)


@dataclass(frozen=True, eq=False, repr=False)
class Traces(Result):
    """One `Trace` for each model; iterates over them."""

    drawn_by: ClassVar[str] = "edgewise.plots.trace_diagram:draw_trace"
    figure_name: ClassVar[str] = "trace-diagram"

    traces: tuple[Trace, ...]

    def __len__(self) -> int:
        return len(self.traces)

    def __iter__(self) -> Iterator[Trace]:
        return iter(self.traces)

    def __getitem__(self, index: int) -> Trace:
        return self.traces[index]

    def table(self, share: float = 0.8, key: int | None = None) -> list[list[str]]:
        """A column for each model; `share` and `key` as in `Trace.summary`, the last trace's main key if not given."""
        key = self.traces[-1].main_key if key is None else key
        columns = [trace.summary(share, key) for trace in self.traces]
        rows = [[row[-1][0], *(value for _, value in row)] for row in zip(*columns, strict=True)]
        return [["", *(trace.title for trace in self.traces)], *rows]

    def save(self, folder: str | Path) -> Path:
        """Write each trace into a folder (two: into a subfolder each), and the graphs that circuit-tracer and Neuronpedia
        read into its subfolder graphs. Gives the folder."""
        folder = Path(folder)
        for trace, subfolder in zip(self.traces, self._subfolders(), strict=True):
            trace.save(folder / subfolder)
            write_graph(trace, folder / GRAPHS)
        return folder

    def _subfolders(self) -> tuple[str, ...]:
        kinds = tuple(trace.kind for trace in self.traces)
        if len(kinds) == 1:
            return ("",)
        return kinds if kinds[0] != kinds[1] else _SAME_KIND

    @classmethod
    def load(cls, folder: str | Path) -> "Traces":
        """Read what `save` wrote, the dense model's trace first."""
        folder = Path(folder)
        for subfolders in (("dense", "sparse"), _SAME_KIND):
            if all((folder / name / FILE).is_file() for name in subfolders):
                return cls(tuple(Trace.load(folder / name) for name in subfolders))
        return cls((Trace.load(folder),))
