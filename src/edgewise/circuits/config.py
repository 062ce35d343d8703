"""Configuration of a circuit search: one dataclass for the API, the command line and its help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from edgewise.core.quantities import byte_count
from edgewise.core.ranges import MEMORY, IntegrationSteps, OpenShare, PromptCount, Seed, check_fields


@dataclass(frozen=True)
class CircuitConfig:
    """A search for circuits."""

    task: str = "ioi"
    """copy, ioi, greater-than, docstring, antonym, or a JSONL file of clean, corrupt, answer, wrong."""
    out: Path | None = None
    """Folder for circuit.json and its figures."""
    prompts: PromptCount = 32
    """Pairs of clean and corrupt prompts to search on: one half chooses components, the other must be explained too before
    one goes. From 8 on, as many more choose the size, and as many are held out for what is reported."""
    threshold: OpenShare = 0.9
    """Share of the effect, clean minus corrupt, that a circuit must explain (faithfulness)."""
    edges: bool = True
    """Also find edges between components; `edges=False` finds heads and token edges only."""
    patch_heads: bool = True
    """Patch every head alone, in both directions, to rank heads; `patch_heads=False` estimates that by gradients
    (attribution patching), two passes instead of two a head."""
    minimal: bool = True
    """Also search jointly for the minimal circuit of heads; `minimal=False` measures prefixes of rankings only."""
    minimal_edges: bool = False
    """Also search jointly for the minimal circuit of edges, which takes minutes per model and task."""
    scrutiny: bool = True
    """Also put minimal circuits to scrutiny: several starts, bootstrap samples, controls."""
    ig_steps: IntegrationSteps = 5
    """Integration steps of EAP-IG, by which edges are ranked; 1 is EAP."""
    seed: Seed = 0
    """Seed of the prompts."""
    max_memory: Annotated[str, MEMORY, tyro.conf.arg(metavar="N")] = "2G"
    """Memory for patched activations: 500M, 2G."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def max_bytes(self) -> int:
        """`max_memory` in bytes."""
        return byte_count(self.max_memory)

    @property
    def method(self) -> str:
        """Name of the attribution method."""
        return "EAP" if self.ig_steps == 1 else f"EAP-IG, {self.ig_steps} steps"
