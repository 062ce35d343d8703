"""Settings of attention maps: one dataclass for the API, the command line and its help."""

from dataclasses import dataclass
from pathlib import Path

from edgewise.core.errors import EdgewiseError


@dataclass(frozen=True)
class MapsConfig:
    """Attention maps of one prompt."""

    task: str = "copy"
    """copy, ioi, greater-than, docstring, antonym, or a JSONL file of clean, corrupt, answer, wrong. Its circuit decides
    which heads are shown."""
    prompt: str | None = None
    """Text to show instead of the task's first clean prompt."""
    heads: str | None = None
    """Heads to show instead of the circuit's: L5H1,L0H0, or all. One alone is drawn with its tokens."""
    circuit: Path | None = None
    """Folder with a circuit.json, from which the task and its heads are taken instead of searching for them."""
    threshold: float = 0.9
    """Share of the task's effect that the heads must explain."""
    prompts: int = 32
    """Pairs of prompts on which the circuit is searched."""
    seed: int = 0
    """Seed of the prompts."""
    out: Path | None = None
    """Folder for attention-maps.json and its arrays, and for the circuit.json of a search."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise EdgewiseError(f"`threshold` must be between 0 and 1, not {self.threshold}")
        if self.prompts < 1:
            raise EdgewiseError(f"`prompts` must be positive, not {self.prompts}")
