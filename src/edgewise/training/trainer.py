"""The training loop, the same for sparsification and for transcoders.

    poll the clock -> forward, backward -> sum metrics and signals over processes -> update the weights
    -> callbacks -> validate when due -> stop, or save when due

What differs is a `TrainingRun`: what a step computes, what a validation measures, what a snapshot holds.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor

from edgewise.core.devices import upload
from edgewise.core.threads import use_free_cores
from edgewise.training import snapshot
from edgewise.training.callbacks import Callback
from edgewise.training.clock import Clock, RunInterrupted, Signals, catching_signals
from edgewise.training.state import TrainingState


class TrainingSettings(Protocol):
    """What the trainer reads of a run's config."""

    @property
    def out(self) -> Path: ...
    @property
    def save_minutes(self) -> float: ...
    @property
    def minute_limit(self) -> float | None: ...
    @property
    def token_limit(self) -> int | None: ...


class TrainingRun(Protocol):
    """A model in training, without the loop around it."""

    accelerator: Accelerator

    @property
    def config(self) -> TrainingSettings: ...
    @property
    def state(self) -> TrainingState: ...
    @property
    def predicts_pace(self) -> bool:
        """Whether the next step takes as long as all steps after it."""
        ...

    @property
    def changes_pace(self) -> bool:
        """Whether the next step is the first of another kind."""
        ...

    def forward_backward(self) -> Tensor:  # -> [n]
        """Compute the gradients of the next batch; returns this process's terms of the step's metrics."""
        ...

    def update(self, sums: Tensor) -> Any:  # [n]
        """Update the weights, given the terms summed over the processes; returns the step's metrics."""
        ...

    def logged(self, metrics: Any) -> dict[str, Any]:
        """What the log is to hold of a step."""
        ...

    def validate(self) -> dict[str, Any]:
        """Measure the model on held-out text; returns what the log is to hold."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All of the run that is neither a weight nor the optimizer's, as JSON."""
        ...

    def load_state_dict(self, saved: dict[str, Any]) -> None: ...


def take_step(run: TrainingRun, signals: Signals | None = None) -> tuple[Any, Signals]:
    """Update the weights once. Metrics and signals are summed over the processes in one reduction."""
    began = time.monotonic()
    terms = run.forward_backward()
    signalled = upload(torch.tensor([float(signal) for signal in signals or Signals()]), terms.device)
    sums: Tensor = run.accelerator.reduce(torch.cat([terms, signalled]), "sum")  # pyright: ignore
    sums = sums.cpu()  # the one time that the host waits for the device: metrics, norm and signals together
    metrics = run.update(sums[: len(terms)])
    run.state.step += 1
    run.state.seconds += time.monotonic() - began
    return metrics, Signals.from_sums(sums[len(terms) :].tolist())


class Trainer:
    """Takes a run through its planned steps, validates it, saves it."""

    def __init__(
        self,
        run: TrainingRun,
        callbacks: Sequence[Callback] = (),
        final_seconds: float = 0.0,
        clock: Clock | None = None,
    ):
        """`final_seconds`: time to leave for what is measured after the last step."""
        self.run, self.callbacks, self._final_seconds = run, callbacks, final_seconds
        self.clock = clock or Clock(run.config.save_minutes)
        self.stop_reason: str | None = None
        self._saved_step = self.state.step or None  # a resumed run has its snapshot
        # counted from where the session before would have validated last
        self._validated_step = self.state.step - self.state.step % self._validation_interval

    @property
    def state(self) -> TrainingState:
        return self.run.state

    def fit(self) -> str:
        """Train until all steps are done or something stops the run; returns the reason."""
        with catching_signals() as received:
            try:
                for callback in self.callbacks:
                    callback.on_begin(self)
                spent = self.state.seconds_spent
                self.clock.start(self.state.step, self._seconds_left)
                while self.state.step < self.state.planned_steps and self.stop_reason is None:
                    metrics, signals = self._step(interrupted=bool(received))
                    self.state.seconds_spent = spent + self.clock.seconds
                    for callback in self.callbacks:
                        callback.on_step_end(self, metrics)
                    if self._validation_is_due or self._is_last(signals):
                        self._validate()
                    if self.stop_reason is None:
                        self._follow(signals)
            finally:
                for callback in self.callbacks:
                    callback.on_end(self)
        self.save_snapshot()
        return self.stop_reason or "all steps done"

    @property
    def _seconds_left(self) -> float | None:
        """For steps, validations and snapshots."""
        limit = self.state.time_limit
        return None if limit is None else limit - self.state.seconds_spent - self._final_seconds

    def stop(self, reason: str) -> None:
        """End the run after this step."""
        self.stop_reason = reason

    def save_snapshot(self) -> None:
        """Write a snapshot, once for each step."""
        if self._saved_step != self.state.step:
            folder = self.run.config.out / snapshot.FOLDER
            snapshot.write(self.run.accelerator, folder, self.state.step, self.run.state_dict())
            self._saved_step = self.state.step
            self.clock.snapshot_saved()

    def _step(self, interrupted: bool) -> tuple[Any, Signals]:
        run, state = self.run, self.state
        use_free_cores()
        if run.changes_pace:
            self.clock.restart_pace(state.step)
        signals = Signals()
        if run.accelerator.is_main_process:
            signals = self.clock.poll(state.step, run.predicts_pace)
        for callback in self.callbacks:
            callback.on_step_begin(self)
        metrics, signals = take_step(run, signals._replace(interrupt=interrupted))
        if signals.planned_steps:  # the schedule follows the pace, so that it is over when the time is
            limit, planned = run.config.token_limit, signals.planned_steps
            if limit is not None:
                planned = min(planned, limit // state.tokens_per_step)
            state.planned_steps = max(state.step, planned)
        return metrics, signals

    def _is_last(self, signals: Signals) -> bool:
        return self.state.step == self.state.planned_steps or signals.time_up

    @property
    def _validation_interval(self) -> int:
        return max(1, -(-self.state.planned_steps // self.state.validations))

    @property
    def _validation_is_due(self) -> bool:
        return self.state.step - self._validated_step >= self._validation_interval

    def _validate(self) -> None:
        self._validated_step = self.state.step
        values = self.run.validate()
        for callback in self.callbacks:
            callback.on_validation(self, values)

    def _follow(self, signals: Signals) -> None:
        """Save and stop as all processes have agreed; an interrupted run is saved first."""
        if signals.interrupt:
            self.save_snapshot()
            raise RunInterrupted(
                f"stopped at step {self.state.step:,} of {self.state.planned_steps:,} and saved; go on with "
                f"`resume=True` `out={self.run.config.out}`"
            )
        if signals.time_up:
            self.stop("time is up")
        elif signals.save:
            self.save_snapshot()
