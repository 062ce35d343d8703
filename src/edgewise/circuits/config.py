"""What can be asked of a search for circuits: one dataclass is the API, the command line and its help."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from edgewise.core.errors import EdgewiseError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class CircuitConfig:
    """A search for circuits."""

    task: str = "ioi"
    """copy, ioi, greater-than, docstring, antonym, or a JSONL file of clean, corrupt, answer, wrong."""
    out: Path | None = None
    """Folder for circuit.json and its pictures."""
    prompts: int = 32
    """Pairs of prompts to use."""
    threshold: float = 0.9
    """Share of the effect that a circuit must explain."""
    edges: bool = True
    """Also find edges between components; --no-edges finds heads and token edges only."""
    ig_steps: int = 5
    """Runs over which an edge's gradient is averaged (EAP-IG); 1 is EAP."""
    seed: int = 0
    """Seed of the prompts."""
    max_memory: Annotated[str, tyro.conf.arg(metavar="N")] = "2G"
    """Memory that patched copies may take: 500M, 2G."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise EdgewiseError(f"--threshold must be between 0 and 1, not {self.threshold}")
        for flag, value in (("--prompts", self.prompts), ("--ig-steps", self.ig_steps)):
            if value < 1:
                raise EdgewiseError(f"{flag} must be positive, not {value}")
        self.memory  # noqa: B018

    @property
    def memory(self) -> int:
        """Bytes."""
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]?)I?B?", self.max_memory.strip().upper())
        if not found or not float(found[1]):
            raise EdgewiseError(f"{self.max_memory!r} is no amount of memory; write 500M or 2G")
        return int(float(found[1]) * _UNITS[found[2]])

    @property
    def method(self) -> str:
        return "EAP" if self.ig_steps == 1 else f"EAP-IG, {self.ig_steps} steps"
