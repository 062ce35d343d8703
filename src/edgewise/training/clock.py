"""When a run is saved, interrupted or over, and how many steps it will have. All processes agree on it in each step: the
main one has the clock, and any may be interrupted."""

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from accelerate import Accelerator

_SAVE, _INTERRUPT, _TIME_UP, _STEPS = range(4)  # what processes tell each other


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after the snapshot was saved."""


class _Settings(Protocol):
    @property
    def out(self) -> Path: ...
    @property
    def save_minutes(self) -> float: ...
    @property
    def minute_limit(self) -> float | None: ...
    @property
    def token_limit(self) -> int | None: ...


class _Timed(Protocol):
    """A training, as its clock sees it."""

    step_number: int
    steps: int
    accelerator: Accelerator

    @property
    def config(self) -> _Settings: ...
    @property
    def tokens_per_step(self) -> int: ...
    def save_snapshot(self) -> Any: ...


class Clock:
    """Ask for `flags` before a step and hand them to it. It gives their sum over the processes: that is for `set_steps`
    right after the step, for `is_last`, and for `saves_or_stops` in the end. `signals` are those caught so far
    (`catching_signals`)."""

    def __init__(self, run: _Timed, signals: Sequence[int]):
        self._run, self._signals, config = run, signals, run.config
        self._saved = self._pace_began = began = time.monotonic()
        self._pace_from = run.step_number
        self._deadline = None if config.minute_limit is None else began + 60 * config.minute_limit
        self._most = math.inf if config.token_limit is None else config.token_limit // run.tokens_per_step

    def begin_other_steps(self) -> None:
        """The steps from now on take another time than those before."""
        self._pace_from, self._pace_began = self._run.step_number, time.monotonic()

    def flags(self, fits_schedule: bool = True) -> tuple[float, ...]:
        """What this process has to tell the others, who add them up. `fits_schedule`: whether these steps tell how many
        there will be."""
        now, run = time.monotonic(), self._run
        flags = [0.0, float(bool(self._signals)), 0.0, 0.0]
        if run.accelerator.is_main_process:
            flags[_SAVE] = float(now - self._saved >= 60 * run.config.save_minutes)
            if self._deadline is not None:
                flags[_TIME_UP] = float(now > self._deadline)
                if fits_schedule:
                    spent, left = now - self._pace_began, self._deadline - now
                    flags[_STEPS] = steps_in_time(run.step_number, self._pace_from, spent, left)
        return tuple(flags)

    def set_steps(self, flags: Sequence[float]) -> None:
        """The schedule follows the pace, so that it is over when the time is."""
        if flags[_STEPS]:
            self._run.steps = max(self._run.step_number, int(min(self._most, flags[_STEPS])))

    def is_last(self, flags: Sequence[float]) -> bool:
        return self._run.step_number == self._run.steps or bool(flags[_TIME_UP])

    def saves_or_stops(self, flags: Sequence[float]) -> bool:
        """Whether time is up. If not, saves when it is time to; a run that was interrupted is saved and ended."""
        run = self._run
        if flags[_INTERRUPT]:
            run.save_snapshot()
            raise Interrupted(
                f"stopped at step {run.step_number:,} of {run.steps:,} and saved; go on with --resume --out {run.config.out}"
            )
        if flags[_TIME_UP]:
            return True
        if flags[_SAVE]:
            run.save_snapshot()
            self._saved = time.monotonic()
        return False


def steps_in_time(step: int, first: int, spent: float, left: float) -> float:
    """How many steps there will be at the pace of those done, checks and snapshots included; 0 while that is unknown."""
    return step + left * (step - first) / spent if step >= first + 20 else 0.0


@contextmanager
def catching_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM finish the step and save. A second Ctrl-C stops at once."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, note)
        except ValueError:  # not the main thread: whoever owns it decides
            break
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
