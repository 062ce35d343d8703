"""The progress of a training on stderr: a bar in a terminal, a line now and then elsewhere."""

import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.progress import BarColumn, Progress, TextColumn
from torch import nn

from edgewise.core.console import QUIET_SECONDS, Display
from edgewise.measure.memory import projected_peak
from edgewise.training.budget import Costs
from edgewise.training.callbacks import Callback
from edgewise.training.state import TrainingState

if TYPE_CHECKING:
    from edgewise.training.trainer import Trainer

_PACE_STEPS = 100  # steps over which the pace is taken


class ProgressLine(Callback):
    """Time left, share done, pace, the run's own numbers; in this order, since a narrow terminal cuts the end."""

    def __init__(
        self,
        display: Display,
        describe: Callable[[Any, dict[str, Any]], str],
        phase_end: Callable[[], int] | None = None,
    ):
        """`describe(metrics, validation)`: the numbers of a step, beside those of the last validation. `phase_end`: the last
        step of the present part of the run, if it has parts."""
        self._display, self._describe, self._phase_end = display, describe, phase_end
        self._validation: dict[str, Any] = {}
        self._bar = Progress(
            BarColumn(20),
            TextColumn("{task.description}"),
            console=display.console,
            disable=display.console.quiet,
        )

    def on_begin(self, trainer: "Trainer") -> None:
        state, self._printed = trainer.state, time.monotonic()
        self._times = deque([(self._printed, state.step)], _PACE_STEPS)  # when which step was done
        self._bar_task = self._bar.add_task("first step", total=state.planned_steps, completed=state.step)
        if self._display.console.is_terminal:
            self._bar.start()

    def on_validation(self, trainer: "Trainer", values: dict[str, Any]) -> None:
        self._validation = values

    def on_step_end(self, trainer: "Trainer", metrics: Any) -> None:
        state, now = trainer.state, time.monotonic()
        self._times.append((now, state.step))
        terminal = self._display.console.is_terminal
        if not terminal and now - self._printed < QUIET_SECONDS and state.step < state.planned_steps:
            return
        (then, step), end = self._times[0], self._phase_end() if self._phase_end else state.planned_steps
        pace = (now - then) / (state.step - step)
        of_part = "" if end == state.planned_steps else " of this part"
        text = (
            f"{duration(pace * (end - state.step))} left{of_part} · {100 * state.step / state.planned_steps:.0f} % · "
            f"{state.tokens_per_step / pace:,.0f} tokens/s · {self._describe(metrics, self._validation)}"
        )
        if terminal:
            self._bar.update(
                self._bar_task, completed=state.step, total=state.planned_steps, description=text
            )
        else:
            self._display.print(text)
            self._printed = now

    def on_end(self, trainer: "Trainer") -> None:
        self._bar.stop()


def print_table(display: Display, lines: dict[str, str]) -> None:
    """One line for each entry: its label, its text."""
    for label, text in lines.items():
        display.print(f"{label:<9}{text}")


def print_resuming(display: Display, out: Path, state: TrainingState) -> None:
    """Where a resumed run goes on, and how much of its time is left."""
    left = (
        ""
        if state.time_limit is None
        else f", {duration(max(0, state.time_limit - state.seconds_spent))} left"
    )
    display.print(
        f"resuming {out} at step {state.step:,} of {state.planned_steps:,} ({state.tokens / 1e6:.2f}M tokens{left})"
    )


def describe_time(state: TrainingState, costs: Costs) -> str:
    """The plan's time: set-up, steps, validations, the measurement at the end."""
    steps = (state.planned_steps - state.step - costs.warmup_steps) * costs.step + costs.warmup
    checks = state.validations * costs.validation
    return (
        f"about {duration(costs.setup + steps + checks + costs.final)}: set-up {costs.setup:.0f} s, steps {duration(steps)} "
        f"({state.tokens_per_step / costs.step:,.0f} tokens/s measured), {state.validations} validations of "
        f"{costs.validation:.2g} s, measurement at the end {costs.final:.0f} s"
    )


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def projected_memory(
    model: nn.Module, device: torch.device, more_per_weight: int = 0, validation: int = 0
) -> int:
    """Bytes at the peak of a run: what the measured steps took, or what `validation` bytes beside the present ones make, and
    what comes with the first update: Adam's two moments, and `more_per_weight` bytes for each trained weight."""
    moments = (8 + more_per_weight) * sum(p.numel() for p in model.parameters() if p.requires_grad)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() + moments
    return projected_peak(validation) + moments
