"""When a run is saved, interrupted or over: a clock that is set by hand, and a run that only counts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgewise.training import clock
from edgewise.training.clock import Clock, Interrupted


class Counting:
    """A run of steps that do nothing."""

    def __init__(self, minutes: float | None = None, tokens: int | None = None, main: bool = True):
        self.config = SimpleNamespace(
            out=Path("runs/x"), save_minutes=5.0, minute_limit=minutes, token_limit=tokens
        )
        self.accelerator: Any = SimpleNamespace(is_main_process=main)
        self.step_number, self.steps, self.tokens_per_step = 0, 1000, 10
        self.saved: list[int] = []

    def save_snapshot(self) -> None:
        self.saved.append(self.step_number)


@pytest.fixture
def now(monkeypatch) -> SimpleNamespace:
    time = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(clock.time, "monotonic", lambda: time.seconds)
    return time


def step(run: Counting, timer: Clock, now: SimpleNamespace, seconds: float, fits_schedule: bool = True):
    flags = timer.flags(fits_schedule)
    run.step_number += 1
    now.seconds += seconds
    timer.set_steps(flags)
    return flags


def test_there_are_as_many_steps_as_the_time_allows(now):
    run = Counting(minutes=10)
    timer = Clock(run, [])
    for _ in range(20):
        step(run, timer, now, 2.0)
    assert run.steps == 1000  # too few to tell
    step(run, timer, now, 2.0)
    assert run.steps == 300
    for _ in range(80):  # something else keeps the machine busy
        step(run, timer, now, 4.0)
    assert run.steps == pytest.approx(101 + (600 - 362) / (362 / 101), abs=2)  # at the mean pace so far
    while not timer.is_last(flags := step(run, timer, now, 4.0)):
        assert not timer.saves_or_stops(flags)
    assert abs(now.seconds - 600) <= 8


def test_steps_of_another_kind_do_not_tell(now):
    run = Counting(minutes=10)
    timer = Clock(run, [])
    for _ in range(100):
        step(run, timer, now, 0.5, fits_schedule=False)
    assert run.steps == 1000
    timer.begin_other_steps()
    for _ in range(21):
        step(run, timer, now, 5.0)
    assert run.steps == 100 + (600 - 50) // 5


def test_no_more_tokens_than_asked_for(now):
    run = Counting(minutes=10, tokens=500)
    timer = Clock(run, [])
    for _ in range(21):
        step(run, timer, now, 0.1)
    assert run.steps == 50
    run, now.seconds = Counting(), 0.0
    timer = Clock(run, [])
    for _ in range(21):
        step(run, timer, now, 60.0)
    assert run.steps == 1000  # no time was set


def test_it_is_saved_every_few_minutes_and_ends_when_time_is_up(now):
    run = Counting(minutes=16)
    timer = Clock(run, [])
    while not timer.saves_or_stops(step(run, timer, now, 60.0, fits_schedule=False)):
        assert run.step_number < 30
    assert run.saved == [6, 12] and run.step_number == 18  # as the clock stood before each step
    assert timer.is_last(timer.flags()) and run.steps == 1000


def test_who_is_interrupted_saves_first_whatever_else_there_is_to_do(now):
    run = Counting(minutes=1)
    signals: list[int] = []
    timer = Clock(run, signals)
    now.seconds = 400.0  # time is up, and it is time to save
    signals.append(15)
    with pytest.raises(Interrupted, match="step 1 of 1,000 and saved; go on with --resume --out runs/x"):
        timer.saves_or_stops(step(run, timer, now, 1.0))
    assert run.saved == [1]


def test_only_the_main_process_has_the_clock_but_any_can_be_interrupted(now):
    run, signals = Counting(minutes=1, main=False), [2]
    timer = Clock(run, signals)
    now.seconds = 400.0
    flags = timer.flags()
    assert sum(flags) == 1.0
    with pytest.raises(Interrupted):
        timer.saves_or_stops(flags)
