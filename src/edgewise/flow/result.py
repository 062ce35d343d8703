"""The open attention edges of one or two models on prompts: what `edgewise flow` computes, saves and draws."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from edgewise.core.errors import EdgewiseError, first_line

FILE = "flow.json"


class Edge(NamedTuple):
    """A query that looks at a key."""

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
    """What the model says at each token; empty where it is not asked."""
    layers: int
    heads: int
    edges: list[Edge]


@dataclass(frozen=True)
class Flows:
    """One row of flows for each model, one column for each prompt."""

    rows: list[list[Flow]]

    def save(self, folder: str | Path) -> Path:
        """Write flow.json into a folder."""
        path = Path(folder) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), separators=(",", ":")) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Flows":
        """Read what `save` wrote: the folder, or the file."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        try:
            rows = json.loads(path.read_text())["rows"]
            return cls([[_flow(saved) for saved in row] for row in rows])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EdgewiseError(f"{path} holds no flows that edgewise wrote: {first_line(error)}") from error


def _flow(saved: dict[str, Any]) -> Flow:
    return Flow(**{**saved, "edges": [Edge(*edge) for edge in saved["edges"]]})
