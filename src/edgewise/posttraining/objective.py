"""The constrained objective: remove edges, keep the loss.

    minimise  E  subject to  L <= L_dense + margin

E is the expected number of open edges, L the cross-entropy. The constraint becomes a multiplier that adjusts itself (GECO):

    loss = fit + beta * pressure
    log beta <- log beta + speed * clip((margin - gap) / margin, -1, 1)

where `gap` is a moving average of L - L_dense. Pressure rises while there is room under the constraint and backs off by
itself when there is none. The recipes' objectives differ in three places (`config.py` has the rest of what they differ in):

                paper                                   edgewise
    fit         L                                       KL(dense || twin), position by position
    pressure    density                                 density / (its current value): the gradient of log density
    gap         L - (held-out L of the dense model)     L - L_dense on the very same batch

The last column is what makes few steps enough. A batch of a few thousand tokens is easier or harder than the next by far
more than the margin, and the paired gap does not see that. The logarithm asks for the same *share* of the remaining edges
at 50 % and at 0.5 %. And the dense model's whole distribution says more about each token than the one word that happened
to follow.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from edgewise.data import IGNORE


@dataclass
class Multiplier:
    """beta, and the moving average that moves it."""

    beta: float
    speed: float
    """Largest relative change in one step."""
    floor: float
    """From here it is back within a hundred steps; a multiplier that falls further is asleep when it is needed."""
    ceiling: float
    memory: float = 0.9
    """Share of the old moving average that stays at each step."""
    gap: float | None = field(default=None, init=False)
    """Moving average of the distance from the dense model's loss, in nats."""

    def update(self, gap: float, margin: float, least: float = 0.0) -> None:
        """Take notice of one batch: how far the twin is from the dense model, how far it may be, and how low beta may go."""
        self.gap = gap if self.gap is None else self.memory * self.gap + (1 - self.memory) * gap
        room = max(-1.0, min(1.0, (margin - self.gap) / margin))
        self.beta = max(self.floor, least, min(self.ceiling, self.beta * math.exp(self.speed * room)))

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self.beta, "gap": self.gap}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.beta, self.gap = state["beta"], state["gap"]


def divergence(logits: Tensor, dense: Tensor, targets: Tensor) -> Tensor:  # -> sum, in nats
    """KL(dense || twin), summed over the positions that ask for something."""
    asked = targets.flatten() != IGNORE
    ours, theirs = (x.flatten(0, 1)[asked].float().log_softmax(-1) for x in (logits, dense))
    return F.kl_div(ours, theirs, log_target=True, reduction="sum")


def schedule(step: int, steps: int, warmup: int, decay: float) -> float:
    """The share of the highest learning rate: linear warm-up, full rate, cosine to zero over the last share `decay`."""
    warm = min(1.0, (step + 1) / max(1, min(warmup, steps // 5)))
    left = (steps - step) / max(1.0, decay * steps)
    return warm * (0.5 - 0.5 * math.cos(math.pi * min(1.0, left)))


def ceiling(step: int, b: float, end: float, steps: int) -> float:
    """The highest offset a gate may have: from `b` down to `end` over the first `steps` steps."""
    return b + (end - b) * min(1.0, step / steps)


def least_pressure(share: float, hold: float, beta: float, floor: float) -> float:
    """The lowest the multiplier may be at a share of the run: its start while it is held, then evenly (in its logarithm)
    down to the floor at the end."""
    if not hold:
        return floor
    return beta * (floor / beta) ** max(0.0, (share - hold) / (1 - hold))


def let_go(least: float, floor: float, density: float) -> float:
    """The lowest the multiplier may be where no more than a certain density is asked for; `density` is the present one, as a
    multiple of that. Once the edges are gone that were to go, only the loss has to come back; some come back with it, so
    this begins at the density asked for and is complete at a tenth less."""
    slack = max(0.0, min(1.0, (1.0 - density) / 0.1))
    return least ** (1 - slack) * floor**slack
