"""Recipes: the hyperparameters of post-training, and the rule that chooses among them.

    choose_recipe(None, n)          "small" for models of up to 5M parameters, "pretrained" for larger ones
    choose_recipe("paper", n)       the paper's own way, at the learning rates that a model of n parameters bears

The evidence for each choice is in docs/research/. A recipe of one's own is a value: `Recipe("mine", ...)`, or
`dataclasses.replace(RECIPES["small"], ...)`.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from edgewise.core.errors import EdgewiseError
from edgewise.gating.config import GateConfig

SMALL_PARAMETERS = 5_000_000
"""Most parameters of a model for which the "small" recipe is chosen."""
INITIAL_B = {"relative": 7.0, "score": 2.0}
"""Initial offset b of a gate of another kind than the recipe's."""
REFERENCE_LR = 1e-3
"""Learning rate of the weights at which thresholds are trained at `threshold_lr`."""


@dataclass(frozen=True)
class GateRecipe:
    """The gate and the schedule of its offset b."""

    kind: str = "relative"
    """Kind of gate, a key of `GATES`."""
    b: float = 7.0
    """Initial offset, constant if the gate does not learn it."""
    b_bound: float | None = 3.0
    """Final upper bound of b, annealed linearly from the initial offset; None for no bound. It closes attention spread thin
    over many keys, which a sparsity penalty near the threshold does not reach."""
    b_bound_steps: int = 400
    """Steps of the annealing at the full threshold learning rate, more at a lower one. Runs of less than twice as many steps
    have no bound: the loss takes as long to recover."""
    null_value: bool = False
    """Learn a null value: a value vector per key/value head that takes the closed attention mass."""
    sampled: bool = False
    """Sample gates while training (hard concrete) instead of opening them exactly when z > 0."""


@dataclass(frozen=True)
class MultiplierRecipe:
    """The multiplier beta of the sparsity penalty (GECO). Its values are multiples of the loss tolerance."""

    initial: float = 5.0
    """Initial value."""
    minimum: float = 0.3
    """Lower bound at the end of the run."""
    maximum: float = 100.0
    """Upper bound."""
    hold_fraction: float = 0.6
    """Fraction of the run in which the lower bound is `hold_minimum`; it then falls geometrically to `minimum`. A multiplier
    that yields at once never gets past the first rise of the loss, one that falls quickly lets edges reopen."""
    hold_minimum: float = 5.0
    """Lower bound during that fraction."""
    step_size: float = 0.03
    """Largest change of log beta in one step."""
    max_change: float | None = None
    """Largest change of log beta over the whole run, None for no limit; a slow multiplier avoids overshoot, because the loss
    responds late."""
    damping: float = 0.0
    """Proportional term: log beta moves at once by this much at the full constraint slack. Damps oscillations; 0 in GECO."""


@dataclass(frozen=True)
class OptimizerRecipe:
    """AdamW, its schedule, and the average of its iterates."""

    lr: float = 1e-3
    """Peak learning rate of the weights."""
    subset_lr: float | None = None
    """Peak learning rate where only LoRA adapters or attention's weights are trained; `lr` if None."""
    threshold_lr: float = 0.1
    """Peak learning rate of the gates' thresholds b where that of the weights is 1e-3; proportional to its square root."""
    warmup_steps: int = 50
    """Steps of linear warm-up, at most a fifth of the run."""
    decay_fraction: float = 0.6
    """Fraction of the run in which learning rates fall to zero (cosine)."""
    averaged_fraction: float = 0.0
    """Fraction of the run whose weights are averaged to become the twin's; 0 for the last step's. Adam's steps at a useful
    learning rate add noise that alone costs a pretrained model more than the tolerance; the average has little of it, and
    the multiplier follows the average's loss on held-out text. With FSDP, of its version 2."""
    batch_size: int = 16
    """Sequences per step, over all processes."""

    def learning_rates(self, lr: float | None, subset: bool) -> tuple[float, float]:
        """Peak learning rates of weights and of thresholds. `lr` replaces the recipe's; `subset`: LoRA or attention only.

        A smaller learning rate slows thresholds too, so that weights can follow, but by less, or they would not arrive.
        """
        peak = lr or (self.subset_lr if subset and self.subset_lr is not None else self.lr)
        return peak, self.threshold_lr * (peak / REFERENCE_LR) ** 0.5


@dataclass(frozen=True)
class Recipe:
    """All hyperparameters of a run of post-training. The defaults are those of the "small" recipe."""

    name: str = "custom"
    distillation: bool = True
    """Fit the dense model's distribution, KL(dense || twin), instead of the next token."""
    paired_baseline: bool = True
    """Constrain the loss against the dense model's on the same batch instead of its fixed held-out loss."""
    kl_constraint: bool = True
    """Hold KL(dense || twin) within the tolerance too, not only the loss: on text that is foreign to the dense model,
    learning it or blurring predictions pays for closed attention, and the loss does not see it."""
    log_density: bool = True
    """Penalise the logarithm of the density instead of the density."""
    head_offset: float | None = None
    """Penalise the mean over heads of log(density of the head + head_offset * mean density): concave across heads, which
    closes heads entirely. None for the density of all heads together."""
    gate: GateRecipe = field(default_factory=GateRecipe)
    multiplier: MultiplierRecipe = field(default_factory=MultiplierRecipe)
    optimizer: OptimizerRecipe = field(default_factory=OptimizerRecipe)

    def gate_config(self, kind: str | None = None, b: float | None = None, sinks: bool = True) -> GateConfig:
        """Configuration of the twin's gate, with another `kind` or initial `b` than the recipe's if given."""
        default_b = self.gate.b if kind in (None, self.gate.kind) else INITIAL_B[kind]
        return GateConfig(
            kind or self.gate.kind, default_b if b is None else b, sinks, null_value=self.gate.null_value
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recipe":
        """Inverse of `dataclasses.asdict`."""
        groups = {"gate": GateRecipe, "multiplier": MultiplierRecipe, "optimizer": OptimizerRecipe}
        return cls(**{**values, **{name: group(**values[name]) for name, group in groups.items()}})


_PRETRAINED_LR, _PRETRAINED_SUBSET_LR = 5e-5, 2e-4
# Adam's steps are as large as its learning rate however small the gradient is, and the nearer the twin is to the dense model
# the noisier the gradient: at 1e-4 the loss of stories15M rises during training, at 3e-5 it falls.

RECIPES = {
    "small": Recipe("small"),
    # Weights of larger models change so slowly that what a large penalty closes is not made up for: the multiplier stays
    # small and slow. But not too small: with the loss at the tolerance, a factor of e in density is worth 1.6 tolerances
    # (stories15M), and at a much smaller multiplier edges reopen that training would have made up for. Nor is b bounded:
    # they need attention that is spread thin.
    "pretrained": Recipe(
        "pretrained",
        gate=GateRecipe(b_bound=None, null_value=True),
        multiplier=MultiplierRecipe(
            initial=2.0,
            minimum=0.1,
            maximum=3.0,
            hold_fraction=1.0,
            hold_minimum=0.5,
            max_change=16.0,
            damping=1.0,
        ),
        optimizer=OptimizerRecipe(
            lr=_PRETRAINED_LR,
            subset_lr=_PRETRAINED_SUBSET_LR,
            decay_fraction=0.3,
            averaged_fraction=0.05,
        ),
    ),
    "paper": Recipe(
        "paper",
        distillation=False,
        paired_baseline=False,
        kl_constraint=False,
        log_density=False,
        gate=GateRecipe(kind="score", b=2.0, b_bound=None, sampled=True),
        multiplier=MultiplierRecipe(
            initial=10.0, minimum=0.1, maximum=1e6, hold_fraction=0.0, hold_minimum=0.0, step_size=0.02
        ),
        optimizer=OptimizerRecipe(threshold_lr=0.0, decay_fraction=0.5),
    ),
}
"""The named recipes."""


def choose_recipe(name: str | None, n_parameters: int) -> Recipe:
    """The recipe of that name; without one, "small" for models of up to 5M parameters and "pretrained" for larger ones.

    Larger models take the learning rates of "pretrained" with the paper's recipe, too.
    """
    is_small = n_parameters <= SMALL_PARAMETERS
    if name is None:
        return RECIPES["small" if is_small else "pretrained"]
    if name not in RECIPES:
        raise EdgewiseError(f"unknown `recipe` {name!r}; the recipes are: {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    if name != "paper" or is_small:
        return recipe
    rates = {"lr": _PRETRAINED_LR, "subset_lr": _PRETRAINED_SUBSET_LR}
    return replace(recipe, optimizer=replace(recipe.optimizer, **rates))
