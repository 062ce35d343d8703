"""When a run of sparsification ends early: its density is reached, or its loss has gone out of reach."""

from typing import TYPE_CHECKING, Any

from edgewise.training.callbacks import Callback
from edgewise.training.diverged import Diverged
from edgewise.training.sparsify.verdict import is_kept

if TYPE_CHECKING:
    from edgewise.training.sparsify.run import SparsifyRun
    from edgewise.training.trainer import Trainer

_SETTLED = 20  # steps after which the gap should not grow much any more


class StopAtDensity(Callback):
    """Stops when held-out density is low enough, and loss and KL within the tolerance."""

    def __init__(self, density: float, tolerance: float, constrains_kl: bool):
        self._density, self._constraint = density, (tolerance, constrains_kl)

    def on_validation(self, trainer: "Trainer", values: dict[str, Any]) -> None:
        kept = is_kept(values["delta_ce"], values["held_out_kl"], *self._constraint)
        if values["density"] <= self._density and kept:
            trainer.stop(f"density {self._density} reached")


class StopIfDiverging(Callback):
    """Stops when the moving average of the gap to the dense model's loss is far above that of the first steps."""

    def __init__(self, run: "SparsifyRun"):
        self._run, self._first_gap = run, None

    def on_begin(self, trainer: "Trainer") -> None:
        self._settled_step = trainer.state.step + _SETTLED

    def on_step_end(self, trainer: "Trainer", metrics: Any) -> None:
        gap = self._run.state.multiplier.loss.average or 0.0
        if trainer.state.step == self._settled_step:
            self._first_gap = max(gap, 0.0)
        if self._first_gap is not None and gap > 2 * self._first_gap + 2.0:
            raise Diverged(f"the loss is {gap:.1f} nats above the dense model's and growing", self._run)
