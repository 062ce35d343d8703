"""A run that cannot go on says so, and what to change."""

from collections.abc import Sequence
from typing import Protocol

from edgewise.core.errors import EdgewiseError
from edgewise.training import snapshot
from edgewise.training.state import TrainingState


class _DivergedRun(Protocol):
    @property
    def state(self) -> TrainingState: ...
    @property
    def learning_rates(self) -> Sequence[float]: ...
    @property
    def config(self) -> snapshot.HasOut: ...


class Diverged(EdgewiseError):
    """The loss is no number, or far too high."""

    def __init__(self, what: str, run: _DivergedRun):
        saved = snapshot.snapshots(run.config.out / snapshot.FOLDER)
        rate = run.learning_rates[0] / 3
        advice = (
            f"the last good snapshot is {saved[0].name}: go on from it with `resume=True` `lr={rate:.1g}`"
            if saved
            else f"start again with `lr={rate:.1g}`"
        )
        super().__init__(f"stopped at step {run.state.step}: {what}; {advice}")
