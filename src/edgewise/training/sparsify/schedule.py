"""Schedules of a run: learning rates, thresholds' upper bound, the multiplier's lower bound and step size."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from edgewise.gating.config import GateConfig
from edgewise.training.sparsify.recipe import Recipe

LONGEST_HORIZON = 4000
"""Most steps over which weights are averaged and the multiplier's change is limited; longer runs need no more."""


def learning_rate_factor(step: int, steps: int, warmup: int, decay: float) -> float:
    """Share of the peak learning rate: linear warm-up, constant, cosine to zero over the last fraction `decay`."""
    warm = min(1.0, (step + 1) / max(1, min(warmup, steps // 5)))
    left = (steps - step) / max(1.0, decay * steps)
    return warm * (0.5 - 0.5 * math.cos(math.pi * min(1.0, left)))


def threshold_bound(step: int, initial: float, final: float, steps: float) -> float:
    """Upper bound of the gates' offsets b: linear from `initial` to `final` over the first `steps` steps."""
    return initial + (final - initial) * min(1.0, step / steps)


def multiplier_minimum(progress: float, hold_fraction: float, hold_minimum: float, minimum: float) -> float:
    """Lower bound of the multiplier at a fraction of the run: `hold_minimum` during the first `hold_fraction`, then
    geometrically down to `minimum` at the end."""
    if not hold_fraction:
        return minimum
    if progress <= hold_fraction:
        return hold_minimum
    return hold_minimum * (minimum / hold_minimum) ** ((progress - hold_fraction) / (1 - hold_fraction))


def relaxed_minimum(bound: float, minimum: float, relative_density: float) -> float:
    """Lower bound of the multiplier in a run with a target density; `relative_density` is the held-out density over it.

    At the target the bound begins to fall from `bound` to `minimum`, and has arrived at a tenth less: then only the loss has
    to recover, and some edges reopen while it does.
    """
    relaxed = max(0.0, min(1.0, (1.0 - relative_density) / 0.1))
    return bound ** (1 - relaxed) * minimum**relaxed


class ScheduledValues(NamedTuple):
    """What holds in one step."""

    lr_factor: float
    """Share of the peak learning rates."""
    multiplier_minimum: float
    """Lower bound of the multiplier, in loss tolerances."""
    multiplier_step_size: float
    """Largest change of the logarithm of the multiplier's integral term."""
    threshold_bound: float | None
    """Upper bound of the gates' offsets; None for no bound."""


@dataclass(frozen=True)
class Schedule:
    """The schedule of a recipe, over the steps after the layer-wise warm-up."""

    recipe: Recipe
    gate: GateConfig
    learning_rates: tuple[float, float]
    """Peak learning rates of weights and of thresholds."""
    layerwise_steps: int

    def at(self, step: int, planned_steps: int) -> ScheduledValues:
        """Values of step `step` of `planned_steps`."""
        optimizer, multiplier = self.recipe.optimizer, self.recipe.multiplier
        joint_step, joint_steps = step - self.layerwise_steps, planned_steps - self.layerwise_steps
        bound = self._threshold_bound(max(0, joint_step), joint_steps)
        if joint_step < 0:
            # the multiplier may fall: beyond the tolerance the estimated loss is far too low, and what it allows is lost
            factor = learning_rate_factor(step, planned_steps, optimizer.warmup_steps, 0.0)
            return ScheduledValues(factor, multiplier.minimum, multiplier.step_size, bound)
        factor = learning_rate_factor(
            joint_step, joint_steps, optimizer.warmup_steps, optimizer.decay_fraction
        )
        minimum = multiplier_minimum(
            joint_step / joint_steps, multiplier.hold_fraction, multiplier.hold_minimum, multiplier.minimum
        )
        return ScheduledValues(factor, minimum, self._multiplier_step_size(planned_steps), bound)

    def horizon(self, planned_steps: int) -> int:
        """Steps over which averages and the multiplier's change are spread."""
        return min(planned_steps - self.layerwise_steps, LONGEST_HORIZON)

    def averaging_window(self, planned_steps: int) -> float:
        """Steps whose weights are averaged."""
        return self.recipe.optimizer.averaged_fraction * self.horizon(planned_steps)

    def _multiplier_step_size(self, planned_steps: int) -> float:
        recipe = self.recipe.multiplier
        if recipe.max_change is None:
            return recipe.step_size
        return min(recipe.step_size, recipe.max_change / self.horizon(planned_steps))

    def _threshold_bound(self, step: int, steps: int) -> float | None:
        """Falls as slowly as thresholds move, and only in runs that are twice as long."""
        recipe, initial = self.recipe.gate, self.gate.b
        if recipe.b_bound is None or not self.gate.learned:
            return None
        annealing = recipe.b_bound_steps * self.recipe.optimizer.threshold_lr / self.learning_rates[1]
        final = min(recipe.b_bound, initial) if steps >= 2 * annealing else initial
        return threshold_bound(step, initial, final, annealing)
