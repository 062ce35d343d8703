"""The time of a run: when to save, when to stop, and how many steps fit; and the signals that interrupt it."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

PACE_STEPS = 3
"""Steps before their pace predicts how many there will be."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after the snapshot was saved."""


class Signals(NamedTuple):
    """What one process tells the others with each step. Added up over the processes, all of them agree on what to do."""

    save: bool = False
    """A snapshot is due."""
    interrupt: bool = False
    """Ctrl-C or SIGTERM was received."""
    time_up: bool = False
    planned_steps: int = 0
    """Steps that fit into the time; 0 while that is unknown."""

    @classmethod
    def from_sums(cls, sums: Sequence[float]) -> "Signals":
        save, interrupt, time_up, planned_steps = sums
        return cls(save > 0, interrupt > 0, time_up > 0, int(planned_steps))


class Clock:
    """Read by the main process only, so that processes whose clocks differ do the same."""

    def __init__(self, save_minutes: float, now: Callable[[], float] = time.monotonic):
        """`save_minutes`: time between snapshots. `now`: seconds."""
        self._save_minutes, self._now = save_minutes, now
        self.start(0)

    def start(self, step: int, seconds: float | None = None) -> None:
        """Begin to count the time of the steps, at a step; `seconds`: what they may take, None for no limit."""
        self._saved_at = self._began = self._now()
        self._deadline = None if seconds is None else self._began + seconds
        self.restart_pace(step)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._now() - self._began

    def restart_pace(self, step: int) -> None:
        """From this step on, steps take another time than before."""
        self._pace_step, self._pace_began = step, self._now()

    def snapshot_saved(self) -> None:
        self._saved_at = self._now()

    def poll(self, step: int, predicts: bool = True) -> Signals:
        """Before a step. `predicts`: whether the pace of the present steps is that of all to come."""
        now = self._now()
        save = now - self._saved_at >= 60 * self._save_minutes
        if self._deadline is None:
            return Signals(save=save)
        planned_steps = 0
        if predicts and step >= self._pace_step + PACE_STEPS:
            # at the pace of the steps done, validations and snapshots included
            left, spent = self._deadline - now, now - self._pace_began
            planned_steps = int(step + left * (step - self._pace_step) / spent)
        return Signals(save=save, time_up=now > self._deadline, planned_steps=planned_steps)


@contextmanager
def catching_signals() -> Iterator[list[int]]:
    """The numbers of the signals received: Ctrl-C and SIGTERM let a step finish. A second Ctrl-C stops at once."""
    received: list[int] = []

    def receive(number: int, frame: Any) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, receive)
        except ValueError:  # not the main thread: whoever owns it decides
            break
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
