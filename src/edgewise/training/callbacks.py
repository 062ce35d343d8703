"""What happens around the steps of a training. The log, the progress line and the trackers are callbacks; so is whatever a
caller of `sparsify` or `train_transcoder` wants to watch or to change:

    class Watch(Callback):
        def on_validation(self, trainer, values):
            print(trainer.state.step, values["density"])

    edgewise.sparsify("pocket", config=config, callbacks=[Watch()])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.training.trainer import Trainer


class Callback:
    """Does nothing. Its methods are called in every process; `trainer.stop(reason)`, called in all of them, ends the run."""

    def on_begin(self, trainer: "Trainer") -> None:
        """Before the first step of a session."""

    def on_step_begin(self, trainer: "Trainer") -> None:
        """Before a step's gradients are computed."""

    def on_step_end(self, trainer: "Trainer", metrics: Any) -> None:
        """After the weights were updated; `metrics` is what the run's `update` returned."""

    def on_validation(self, trainer: "Trainer", values: dict[str, Any]) -> None:
        """After a validation; `values` are those of the log."""

    def on_end(self, trainer: "Trainer") -> None:
        """After the last step, and when a step has failed."""


class Tracker(Callback):
    """Sends some values of each validation to the accelerator's tracker (tensorboard, wandb, trackio)."""

    def __init__(self, *names: str):
        self._names = names

    def on_validation(self, trainer: "Trainer", values: dict[str, Any]) -> None:
        sent = {name: values[name] for name in self._names}
        trainer.run.accelerator.log(sent, step=trainer.state.step)
