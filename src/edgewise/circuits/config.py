"""Configuration of a circuit search: one dataclass for the API, the command line and its help."""

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
    """Folder for circuit.json and its figures."""
    prompts: int = 32
    """Pairs of clean and corrupt prompts."""
    threshold: float = 0.9
    """Share of the effect, clean minus corrupt, that a circuit must explain (faithfulness)."""
    edges: bool = True
    """Also find edges between components; `edges=False` finds heads and token edges only."""
    ig_steps: int = 5
    """Integration steps of EAP-IG, by which edges are ranked; 1 is EAP."""
    seed: int = 0
    """Seed of the prompts."""
    max_memory: Annotated[str, tyro.conf.arg(metavar="N")] = "2G"
    """Memory for patched activations: 500M, 2G."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise EdgewiseError(f"`threshold` must be between 0 and 1, not {self.threshold}")
        for name in ("prompts", "ig_steps"):
            if getattr(self, name) < 1:
                raise EdgewiseError(f"`{name}` must be positive, not {getattr(self, name)}")
        _ = self.max_bytes

    @property
    def max_bytes(self) -> int:
        """`max_memory` in bytes."""
        amount = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]?)I?B?", self.max_memory.strip().upper())
        if not amount or not float(amount[1]):
            raise EdgewiseError(f"`max_memory` {self.max_memory!r} is no amount of memory; write 500M or 2G")
        return int(float(amount[1]) * _UNITS[amount[2]])

    @property
    def method(self) -> str:
        """Name of the attribution method."""
        return "EAP" if self.ig_steps == 1 else f"EAP-IG, {self.ig_steps} steps"
