"""Where a run of sparsification stands."""

import math
from dataclasses import dataclass, field

from edgewise.training.sparsify.multiplier import Multiplier
from edgewise.training.state import TrainingState


@dataclass
class SparsifyState(TrainingState):
    multiplier: Multiplier = field(kw_only=True)
    density_per_head: list[list[float]] = field(kw_only=True)
    """Expected density of the last step, [layers][heads], by which relative penalties are divided."""
    held_out_density: float = 1.0
    """At the last validation."""
    dense_ce: float = math.nan
    """The dense model's loss on all held-out text."""
