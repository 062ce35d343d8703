"""The open attention edges of one or two models on prompts, as data."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from edgewise.core.files import is_folder, write_json
from edgewise.core.results import Result
from edgewise.core.schema import read_as
from edgewise.core.text import visible

FILE = "flow.json"


class Edge(NamedTuple):
    """An attention edge from a query to a key."""

    layer: int
    head: int
    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Flow:
    """The open attention edges of one model on one prompt."""

    model: str
    kind: str
    """dense or sparse"""
    prompt: str
    tokens: list[str]
    answers: list[str]
    """The model's prediction at each token; empty where it is not shown."""
    layers: int
    heads: int
    edges: list[Edge]


@dataclass(frozen=True, repr=False)
class Flows(Result):
    """Flows of each model (a row) on each prompt (a column)."""

    drawn_by: ClassVar[str] = "edgewise.plots.flow:draw_flow"
    figure_name: ClassVar[str] = "flow"

    rows: list[list[Flow]]

    def table(self) -> list[list[str]]:
        """Open edges of each model on each prompt."""
        header = ["model", "kind", "prompt", "tokens", "open edges", "prediction"]
        return [header] + [
            [
                flow.model,
                flow.kind,
                visible(flow.prompt, 40),
                str(len(flow.tokens)),
                f"{len(flow.edges):,}",
                visible("".join(flow.answers)),
            ]
            for row in self.rows
            for flow in row
        ]

    def save(self, folder: str | Path) -> Path:
        """Write flow.json into a folder."""
        return write_json(Path(folder) / FILE, asdict(self), indent=None)

    @classmethod
    def load(cls, path: str | Path) -> "Flows":
        """Read what `save` wrote: the folder, or the file."""
        path = Path(path)
        return read_as(cls, path / FILE if is_folder(path) else path, "flows")
