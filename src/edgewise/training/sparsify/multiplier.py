"""The constrained objective, and the multiplier of its sparsity penalty.

    minimise  E  subject to  L <= L_dense + tolerance  and  KL(dense || twin) <= tolerance

E is the expected number of open edges, L the cross-entropy. The constraint becomes a multiplier beta that adjusts itself
(GECO), here with an integral and a proportional term:

    loss     = fit + beta * penalty
    gap      = max(L - L_dense, KL)
    slack    = clip((tolerance - gap) / tolerance, -1, 1)
    log integral <- log integral + step_size * slack
    log beta = log integral + damping * slack

Both terms of `gap` are moving averages, corrected by validations where the twin is an average of many steps. The multiplier
rises while there is slack and falls by itself when there is none. The loss responds only after many steps, so the integral
term alone overshoots; the proportional term responds at once, and damps that (0 in GECO). The recipes' objectives differ in
four places (`recipe.py` has their other differences):

                paper                                   edgewise
    fit         L                                       KL(dense || twin), position by position
    penalty     density                                 density / (its current value): the gradient of log density
    L - L_dense against the dense model's held-out L    against the dense model on the same batch
    KL          not constrained                         constrained

The third line is what makes few steps enough. The loss of a batch of a few thousand tokens varies by far more than the
tolerance; the paired gap does not. The logarithm asks for the same *share* of the remaining edges at 50 % and at 0.5 %. And
the dense model's whole distribution says more about each position than the one token that happened to follow.

The loss alone can be paid with something else than attention: on text that is foreign to the dense model a twin gains by
blurring its predictions or by learning the text what it loses by closing edges. The KL divergence sees every change.
"""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Gap:
    """Estimate of a held-out gap between twin and dense model, in nats per token."""

    average: float | None = None
    """Moving average over training batches."""
    correction: float | None = None
    """The held-out gap of the twin that would be saved, minus the moving average, at the last validation."""

    @property
    def expected(self) -> float:
        return (self.average or 0.0) + (self.correction or 0.0)

    def update(self, gap: float, decay: float) -> None:
        """Add the gap on one batch."""
        self.average = gap if self.average is None else decay * self.average + (1 - decay) * gap

    def correct(self, gap: float) -> None:
        """Correct the moving average by a held-out gap. Validations read the same text each time, so their changes have no
        sampling noise; between two of them the moving average tells."""
        self.correction = gap - (self.average or 0.0)

    def reset(self) -> None:
        self.average = self.correction = None

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "correction": self.correction}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = (state["average"], state["correction"])
        self.average, self.correction = (None if value is None else float(value) for value in saved)


@dataclass
class Multiplier:
    """beta, and the gaps that it follows."""

    beta: float
    step_size: float
    """Largest change of log integral in one step."""
    minimum: float
    """Lower bound. From there it recovers within a hundred steps; a multiplier that falls further responds too late."""
    maximum: float
    """Upper bound."""
    damping: float = 0.0
    """Proportional term: log beta - log integral at full slack."""
    decay: float = 0.9
    """Decay of the moving average of the gap."""
    integral: float = field(init=False)
    """Integral term: beta at zero slack."""
    loss: Gap = field(default_factory=Gap, init=False)
    """Of the loss."""
    kl: Gap = field(default_factory=Gap, init=False)
    """KL(dense || twin); without an average where it is not constrained."""

    def __post_init__(self) -> None:
        self.integral = self.beta

    @property
    def expected(self) -> float:
        """Estimated held-out gap of the twin that would be saved: the larger one of loss and KL."""
        return self.loss.expected if self.kl.average is None else max(self.loss.expected, self.kl.expected)

    def reset_gaps(self) -> None:
        self.loss.reset()
        self.kl.reset()

    def update(
        self,
        gap: float,
        tolerance: float,
        minimum: float = 0.0,
        *,
        kl: float | None = None,
        step_size: float | None = None,
        decay: float | None = None,
    ) -> None:
        """Update beta by the loss gap of one batch, and by its KL divergence if that is constrained too.

        `minimum` is a lower bound for this step, besides the multiplier's own; `step_size` and `decay` replace its own.
        """
        step_size = self.step_size if step_size is None else step_size
        decay = self.decay if decay is None else decay
        self.loss.update(gap, decay)
        if kl is not None:
            self.kl.update(kl, decay)
        slack = max(-1.0, min(1.0, (tolerance - self.expected) / tolerance))
        self.integral = self._clip(self.integral * math.exp(step_size * slack), minimum)
        self.beta = self._clip(self.integral * math.exp(self.damping * slack), minimum)

    def _clip(self, value: float, minimum: float) -> float:
        return max(self.minimum, minimum, min(self.maximum, value))

    def state_dict(self) -> dict[str, Any]:
        gaps = {"loss": self.loss.state_dict(), "kl": self.kl.state_dict()}
        return {"beta": self.beta, "integral": self.integral, **gaps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.beta, self.integral = state["beta"], state["integral"]
        self.loss.load_state_dict(state["loss"])
        self.kl.load_state_dict(state["kl"])
