"""Settings of attention maps: one dataclass for the API, the command line and its help."""

from dataclasses import dataclass
from pathlib import Path

from edgewise.core.ranges import OpenShare, PromptCount, Seed, check_fields


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
    threshold: OpenShare = 0.9
    """Share of the task's effect that the heads must explain."""
    prompts: PromptCount = 32
    """Pairs of prompts on which the circuit is searched."""
    seed: Seed = 0
    """Seed of the prompts."""
    out: Path | None = None
    """Folder for attention-maps.json and its arrays, and for the circuit.json of a search."""

    def __post_init__(self) -> None:
        check_fields(self)
