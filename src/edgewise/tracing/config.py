"""Options of a trace: one dataclass is the API, the command line and its help."""

from dataclasses import dataclass
from pathlib import Path

from edgewise.core.errors import EdgewiseError


@dataclass(frozen=True)
class TraceConfig:
    """A trace of one prediction."""

    prompt: str = 'The opposite of " large " is "'
    """The text whose next token is explained."""
    out: Path = Path("runs/trace")
    """Folder for trace.json, its arrays, the diagram and the graph that other viewers read."""
    logit: str | None = None
    """The token to explain; if not given, the most likely ones that have 95 % of the probability together."""
    node_threshold: float = 0.8
    """Share of the influence on the logits that the kept features and errors have."""
    edge_threshold: float = 0.98
    """Share of the flow among them that the kept links have."""
    share: float = 0.8
    """Share of what attention carries, for which the fewest heads are named."""
    data: tuple[str, ...] | None = None
    """Text in which to look for contexts of the kept features: files, folders or the name of a dataset. The shipped models
    bring their own; without any, a trace has no contexts."""
    key: int | None = None
    """Also name the heads that carry from this token to the last one, counted from 1 as in the diagram; the one from which
    most comes if not given."""

    def __post_init__(self) -> None:
        for name in ("node_threshold", "edge_threshold", "share"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise EdgewiseError(f"`{name}` must be above 0 and at most 1, not {value}")
        if self.key is not None and self.key < 1:
            raise EdgewiseError(f"`key` counts tokens from 1, so it cannot be {self.key}")

    @property
    def key_position(self) -> int | None:
        """The key's position, counted from 0 as everywhere in Python."""
        return None if self.key is None else self.key - 1
