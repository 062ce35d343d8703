"""The constrained objective: remove edges, keep the loss.

    minimise  E  subject to  L <= L_dense + tolerance

E is the expected number of open edges, L the cross-entropy. The constraint becomes a multiplier that adjusts itself (GECO):

    loss = fit + beta * pressure
    room = clip((tolerance - gap) / tolerance, -1, 1)
    log level <- log level + speed * room
    log beta = log level + lead * room

where `gap` is a moving average of L - L_dense, corrected by what validations find if the twin is an average of many steps.
Pressure rises while there is room under the constraint and backs off by itself when there is none. What it does shows in
the loss only after many steps, so that a level alone goes too far up, then too far down; the lead answers at once, and damps
that (0 in GECO). The recipes' objectives differ in three places (`config.py` has the rest of what they differ in):

                paper                                   edgewise
    fit         L                                       KL(dense || twin), position by position
    pressure    density                                 density / (its current value): the gradient of log density
    gap         L - (held-out L of the dense model)     L - L_dense on the very same batch

The last column is what makes few steps enough. A batch of a few thousand tokens is easier or harder than the next by far
more than the tolerance, and the paired gap does not see that. The logarithm asks for the same *share* of the remaining edges
at 50 % and at 0.5 %. And the dense model's whole distribution says more about each token than the one word that happened
to follow.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgewise.data import IGNORE


@dataclass
class Multiplier:
    """beta, and the moving average that moves it."""

    beta: float
    speed: float
    """Largest relative change of the level in one step."""
    floor: float
    """From here it is back within a hundred steps; a multiplier that falls further is asleep when it is needed."""
    ceiling: float
    lead: float = 0.0
    """How much beta is above its level where there is all the room there could be, or below where there is none, in powers
    of e."""
    memory: float = 0.9
    """Share of the old moving average that stays at each step."""
    level: float = field(init=False)
    """Where beta would be with the loss at the tolerance."""
    gap: float | None = field(default=None, init=False)
    """Moving average of the distance from the dense model's loss, in nats."""
    correction: float | None = field(default=None, init=False)
    """By how much the twin that would be saved is further from it, on held-out text, than the moving average says."""

    def __post_init__(self) -> None:
        self.level = self.beta

    @property
    def expected(self) -> float:
        """How far the twin that would be saved is from the dense model's loss, as far as known."""
        return (self.gap or 0.0) + (self.correction or 0.0)

    def correct(self, gap: float) -> None:
        """Take notice of what was measured on held-out text. It is the same text each time, so there is no noise in how it
        changes; between two measurements the moving average tells."""
        self.correction = gap - (self.gap or 0.0)

    def update(
        self,
        gap: float,
        tolerance: float,
        least: float = 0.0,
        *,
        speed: float | None = None,
        memory: float | None = None,
    ) -> None:
        """Take notice of one batch: how far the twin is from the dense model, how far it may be, and how low beta may go.
        `speed` and `memory` replace the multiplier's own in this step."""
        speed, memory = self.speed if speed is None else speed, self.memory if memory is None else memory
        self.gap = gap if self.gap is None else memory * self.gap + (1 - memory) * gap
        room = max(-1.0, min(1.0, (tolerance - self.expected) / tolerance))
        lowest = max(self.floor, least)
        self.level = max(lowest, min(self.ceiling, self.level * math.exp(speed * room)))
        self.beta = max(lowest, min(self.ceiling, self.level * math.exp(self.lead * room)))

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self.beta, "level": self.level, "gap": self.gap, "correction": self.correction}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.beta, self.gap, self.correction = state["beta"], state["gap"], state.get("correction")
        self.level = state.get("level", self.beta)


class Compared(NamedTuple):
    """The twin beside the dense model, summed over the positions that ask for something, in nats."""

    divergence: Tensor
    """KL(dense || twin). Only this is differentiable, and only in the twin."""
    ce: Tensor
    dense_ce: Tensor


def compare(
    logits: Tensor, dense: Tensor, targets: Tensor
) -> Compared:  # 2 x [rows, t, vocabulary], [rows, t]
    """All that a step asks of the two models' predictions, from one pass over them."""
    return Compared(*_Compare.apply(logits.flatten(0, 1), dense.flatten(0, 1), targets.flatten()))


_LOGITS_AT_ONCE = {
    "cpu": 1 << 18
}  # 1 MB, which stays in the cache from the first of some ten passes to the last
_LOGITS_AT_ONCE_ELSEWHERE = 1 << 24


class _Compare(torch.autograd.Function):
    """Some positions at a time, so that nothing of the logits' size is held besides the gradient, p_twin - p_dense."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, dense: Tensor, targets: Tensor):  # pyright: ignore
        at_once = _LOGITS_AT_ONCE.get(logits.device.type, _LOGITS_AT_ONCE_ELSEWHERE)
        real = torch.promote_types(logits.dtype, torch.float32)
        sums = torch.zeros(3, dtype=real, device=logits.device)
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        for first in range(0, len(targets), step := max(1, at_once // logits.shape[-1])):
            here = slice(first, first + step)
            asked = (targets[here] != IGNORE).to(real)[:, None]
            ours, theirs = (x[here].to(real).log_softmax(-1) for x in (logits, dense))
            p = theirs.exp()
            sums[0] += ((theirs - ours).mul_(p) * asked).sum()
            for place, x in ((1, ours), (2, theirs)):
                sums[place] -= (x.gather(-1, targets[here, None].clamp(min=0)) * asked).sum()
            if gradient is not None:
                gradient[here] = ours.exp_().sub_(p).mul_(asked)
        ctx.gradient = gradient
        divergence, ce, dense_ce = sums
        ctx.mark_non_differentiable(ce, dense_ce)
        return divergence, ce, dense_ce

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, arriving: Tensor, *_: Any):  # pyright: ignore
        gradient, ctx.gradient = ctx.gradient, None  # in place: it is as large as the logits
        return gradient.mul_(arriving), None, None


def schedule(step: int, steps: int, warmup: int, decay: float) -> float:
    """The share of the highest learning rate: linear warm-up, full rate, cosine to zero over the last share `decay`."""
    warm = min(1.0, (step + 1) / max(1, min(warmup, steps // 5)))
    left = (steps - step) / max(1.0, decay * steps)
    return warm * (0.5 - 0.5 * math.cos(math.pi * min(1.0, left)))


def ceiling(step: int, b: float, end: float, steps: float) -> float:
    """The highest offset a gate may have: from `b` down to `end` over the first `steps` steps."""
    return b + (end - b) * min(1.0, step / steps)


def least_pressure(share: float, hold: float, held: float, floor: float) -> float:
    """The lowest the multiplier may be at a share of the run: `held` in the share `hold`, then evenly (in its logarithm)
    down to the floor at the end."""
    if not hold:
        return floor
    return held if share <= hold else held * (floor / held) ** ((share - hold) / (1 - hold))


def let_go(least: float, floor: float, density: float) -> float:
    """The lowest the multiplier may be where no more than a certain density is asked for; `density` is the present one, as a
    multiple of that. Once the edges are gone that were to go, only the loss has to come back; some come back with it, so
    this begins at the density asked for and is complete at a tenth less."""
    slack = max(0.0, min(1.0, (1.0 - density) / 0.1))
    return least ** (1 - slack) * floor**slack
