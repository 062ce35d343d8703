"""The training loop, with a clock that is set by hand and a run that only counts: when it is saved, interrupted, over."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import interrupt_at

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.training.budget import Costs, begin_time, check_time_limit, plan_steps, plan_validations
from edgewise.training.callbacks import Callback
from edgewise.training.clock import PACE_STEPS, Clock, RunInterrupted, Signals
from edgewise.training.config import TrainerConfig
from edgewise.training.console import ProgressLine
from edgewise.training.log import open_at_step
from edgewise.training.resume import reading, restore
from edgewise.training.snapshot import Snapshot
from edgewise.training.state import TrainingState
from edgewise.training.trainer import Trainer, take_step


class Time:
    """Seconds that pass when told."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class CountingRun:
    """Steps of a given duration that do nothing. A first part of `other_steps` steps tells nothing about the pace."""

    def __init__(
        self,
        time: Time,
        seconds: float,
        minutes: float | None = None,
        tokens: int | None = None,
        other_steps: int = 0,
        is_main: bool = True,
    ):
        self.time, self.seconds, self.other_steps = time, seconds, other_steps
        self.config = SimpleNamespace(
            out=Path("runs/x"), save_minutes=5.0, minute_limit=minutes, token_limit=tokens
        )
        self.accelerator: Any = SimpleNamespace(is_main_process=is_main, reduce=lambda x, how: x)
        limit = None if minutes is None else 60 * minutes
        self.state = TrainingState(tokens_per_step=10, planned_steps=1000, time_limit=limit)
        self.validated: list[int] = []

    @property
    def predicts_pace(self) -> bool:
        return self.state.step >= self.other_steps

    @property
    def changes_pace(self) -> bool:
        return self.state.step == self.other_steps

    def forward_backward(self) -> torch.Tensor:
        self.time.seconds += self.seconds
        return torch.ones(1)

    def update(self, sums: torch.Tensor) -> float:
        return sums.item()

    def logged(self, metrics: float) -> dict[str, Any]:
        return {}

    def validate(self) -> dict[str, Any]:
        self.validated.append(self.state.step)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, saved: dict[str, Any]) -> None: ...


class CountingTrainer(Trainer):
    """Remembers at which steps a snapshot was due."""

    def __init__(self, run: CountingRun, *callbacks: Callback, final_seconds: float = 0.0):
        clock = Clock(run.config.save_minutes, now=run.time)
        super().__init__(run, callbacks, final_seconds, clock)
        self.saved: list[int] = []

    def save_snapshot(self) -> None:
        if self.state.step not in self.saved:
            self.saved.append(self.state.step)
            self.clock.snapshot_saved()


class StopAfter(Callback):
    def __init__(self, steps: int):
        self.steps = steps

    def on_step_end(self, trainer: Trainer, metrics: Any) -> None:
        if trainer.state.step == self.steps:
            trainer.stop("enough")


def planned_after(run: CountingRun, steps: int) -> int:
    CountingTrainer(run, StopAfter(steps)).fit()
    assert run.state.step == steps
    return run.state.planned_steps


def test_there_are_as_many_steps_as_the_time_allows():
    assert planned_after(CountingRun(Time(), 2.0, minutes=10), PACE_STEPS) == 1000  # too few to tell
    assert planned_after(CountingRun(Time(), 2.0, minutes=10), PACE_STEPS + 1) == 300


class SlowerFrom(Callback):
    """Something else keeps the machine busy from a step on."""

    def __init__(self, step: int, seconds: float):
        self.step, self.seconds = step, seconds

    def on_step_begin(self, trainer: Trainer) -> None:
        run: Any = trainer.run
        if trainer.state.step >= self.step:
            run.seconds = self.seconds


def test_the_schedule_follows_the_pace():
    run = CountingRun(Time(), 2.0, minutes=10)
    CountingTrainer(run, SlowerFrom(21, 4.0), StopAfter(102)).fit()
    assert run.state.planned_steps == pytest.approx(
        101 + (600 - 362) / (362 / 101), abs=2
    )  # at the mean pace
    run = CountingRun(Time(), 2.0, minutes=10)
    CountingTrainer(run, SlowerFrom(21, 4.0)).fit()
    assert abs(run.time.seconds - 600) <= 8


def test_steps_of_another_kind_do_not_predict_the_pace():
    run = CountingRun(Time(), 0.5, minutes=10, other_steps=100)
    CountingTrainer(run, SlowerFrom(100, 5.0), StopAfter(100)).fit()
    assert run.state.planned_steps == 1000
    run = CountingRun(Time(), 0.5, minutes=10, other_steps=100)
    CountingTrainer(run, SlowerFrom(100, 5.0), StopAfter(101 + PACE_STEPS)).fit()
    assert run.state.planned_steps == 100 + (600 - 50) // 5


def test_no_more_tokens_than_asked_for():
    assert planned_after(CountingRun(Time(), 0.1, minutes=10, tokens=500), 21) == 50
    assert planned_after(CountingRun(Time(), 60.0), 21) == 1000  # no time was set


def test_a_run_is_saved_every_few_minutes_and_ends_with_a_validation_when_time_is_up():
    run = CountingRun(Time(), 60.0, minutes=16, other_steps=100)
    trainer = CountingTrainer(run)
    assert trainer.fit() == "time is up"
    assert (
        trainer.saved == [6, 12, 18] and run.state.step == 18
    )  # by the clock before each step, and at the end
    assert run.validated == [18] and run.state.planned_steps == 1000


def test_an_interrupted_run_is_saved_whatever_else_is_due():
    run = CountingRun(Time(), 400.0, minutes=1)  # time is up after a step, and a snapshot is due
    trainer = CountingTrainer(run, interrupt_at(0))
    with pytest.raises(
        RunInterrupted, match="step 2 of 1,000 and saved; go on with `resume=True` `out=runs/x`"
    ):
        trainer.fit()
    assert trainer.saved == [2]


def test_only_the_main_process_reads_the_clock_but_any_can_be_interrupted():
    run = CountingRun(Time(), 400.0, minutes=1, is_main=False)
    trainer = CountingTrainer(run, interrupt_at(2))
    with pytest.raises(RunInterrupted, match="step 4 of 1,000"):  # the minute was over after the first step
        trainer.fit()
    assert trainer.saved == [4]


def test_signals_of_all_processes_are_added_up():
    run = CountingRun(Time(), 1.0)
    other = Signals(interrupt=True)
    run.accelerator.reduce = lambda x, how: x + torch.tensor([2.0, *map(float, other)])
    metrics, signals = take_step(run, Signals(save=True, planned_steps=300))
    assert metrics == 3.0 and signals == Signals(save=True, interrupt=True, planned_steps=300)


def test_validations_are_spread_evenly_and_the_last_step_has_one():
    run = CountingRun(Time(), 1.0)
    run.state.planned_steps = 101
    trainer = CountingTrainer(run)
    run.state.validations = 10
    assert trainer.fit() == "all steps done"
    assert run.validated == [*range(11, 101, 11), 101]


def test_few_steps_have_no_more_validations_than_asked_for():
    """Not one after every step, as it was with fewer than twice as many steps as validations."""
    run = CountingRun(Time(), 1.0)
    run.state.planned_steps = 47
    CountingTrainer(run).fit()
    assert len(run.validated) == 24 and run.validated[-1] == 47


def test_a_resumed_run_has_the_time_that_is_left_and_keeps_its_schedule():
    run = CountingRun(Time(), 2.0, minutes=10)
    CountingTrainer(run, StopAfter(120)).fit()
    assert run.state.seconds_spent == 240 and run.state.planned_steps == 300
    resumed = CountingRun(Time(), 2.0, minutes=10)
    resumed.state.load_state_dict(run.state.state_dict())
    trainer = CountingTrainer(resumed, planned := PlannedSteps())
    assert trainer.fit() == "all steps done"
    assert set(planned.steps) == {300} and resumed.time.seconds == 360
    assert resumed.state.seconds_spent == 600


def test_what_comes_after_the_last_step_is_left_time():
    run = CountingRun(Time(), 2.0, minutes=10)
    CountingTrainer(run, final_seconds=100.0).fit()
    assert run.time.seconds == 500


# -------------------------------------------------------------------------------------------------------- budgets


def a_plan(minutes: float, costs: Costs, validation_tokens: int = 20) -> TrainingState:
    """A run of 10 tokens a step, as it would be planned."""
    config: Any = SimpleNamespace(minute_limit=minutes, token_limit=None)
    state, trainer = TrainingState(tokens_per_step=10), TrainerConfig()
    begin_time(config, state, costs.setup)
    state.planned_steps = plan_steps(config, state, costs)
    check_time_limit(config, costs, trainer)
    state.validations = plan_validations(trainer, state, costs, validation_tokens)
    state.planned_steps = plan_steps(config, state, costs, state.validations)
    return state


@pytest.mark.parametrize(
    "costs",
    [
        Costs(step=0.5, setup=10, validation=2, final=5),
        Costs(step=8.0, setup=40, validation=15, final=20),
        Costs(step=0.1, setup=80, validation=1, final=5),
        Costs(step=2.0, setup=5, validation=1, final=5, warmup_steps=20, warmup=15.0),
    ],
)
def test_at_least_four_fifths_of_the_minutes_are_spent_in_steps(costs):
    state = a_plan(10, costs)
    steps = (state.planned_steps - costs.warmup_steps) * costs.step + costs.warmup
    idle = costs.setup + state.validations * costs.validation + costs.final
    assert 0.8 * 600 - costs.step <= steps <= 600 - idle and 1 <= state.validations <= 24


def test_minutes_that_are_too_few_are_refused_with_those_that_would_do():
    for costs in (Costs(0.5, setup=60, validation=5, final=60), Costs(30.0, setup=10, validation=1, final=1)):
        with pytest.raises(EdgewiseError, match="`minutes=5` is too little time") as error:
            a_plan(5, costs)
        enough = re.search(r"give at least `minutes=([\d.]+)`", str(error.value))
        assert enough is not None
        assert a_plan(float(enough[1]), costs).planned_steps >= 10


def test_validations_are_a_small_part_of_the_work():
    state = a_plan(10, Costs(step=1.0, setup=1), validation_tokens=600)
    assert state.planned_steps == 599
    assert state.validations == 2  # 2 * 600 / 3 is less than a tenth of 599 * 10, 3 * 600 / 3 is not


class PlannedSteps(Callback):
    """What a run plans at each of its steps."""

    def __init__(self):
        self.steps: list[int] = []

    def on_step_end(self, trainer: Trainer, metrics: Any) -> None:
        self.steps.append(trainer.state.planned_steps)


def test_callbacks_end_even_if_a_step_fails():
    ended = []

    class Failing(Callback):
        def on_step_begin(self, trainer: Trainer) -> None:
            raise ZeroDivisionError

        def on_end(self, trainer: Trainer) -> None:
            ended.append(trainer.state.step)

    with pytest.raises(ZeroDivisionError):
        CountingTrainer(CountingRun(Time(), 1.0), Failing()).fit()
    assert ended == [0]


def test_the_state_is_restored_from_what_is_saved():
    state = TrainingState(10, step=3, planned_steps=9, seconds=1.5)
    other = TrainingState(10)
    other.load_state_dict(state.state_dict())
    assert other == state and other.tokens == 30


def test_progress_begins_with_the_time_left(capsys):
    progress = ProgressLine(Display(), lambda metrics, validation: f"loss {metrics}")
    CountingTrainer(CountingRun(Time(), 2.0, minutes=10), progress).fit()
    assert re.match(r"0:00:00 left · 100 % · [\d,]+ tokens/s · loss 1", capsys.readouterr().err)


STATE = {"step": 3, "seconds": 1.5, "limit": None, "density": [[0.1, 0.2]], "gap": {"average": None}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"limit": 60.0, "gap": {"average": 0.1}}, None),
        ({"step": "3"}, "state.step is a str"),
        ({"seconds": float("nan")}, "state.seconds is nan"),
        ({"density": [[0.1], [0.2, 0.3]]}, "state.density is no matrix"),
        ({"gap": 5}, "state.gap has no fields"),
        ({"gap": {}}, "state.gap.average is missing"),
    ],
)
def test_a_snapshot_of_another_version_is_refused(change, said):
    restored = []
    run: Any = SimpleNamespace(
        state_dict=lambda: {"state": STATE, "data": {}},
        accelerator=SimpleNamespace(load_state=lambda folder: None),
        load_state_dict=lambda content: restored.append(content["state"]),
    )
    saved = Snapshot(Path("step-3"), {"state": STATE | change, "data": {}})
    if said is None:
        restore(run, saved)
        assert restored == [STATE | change]
        return
    with pytest.raises(EdgewiseError, match=f"step-3 is of another version.*{said}"), reading(saved):
        restore(run, saved)
    assert not restored


@pytest.mark.parametrize("line", ["{}", "[]", "5", '{"step": "a"}', '{"step": [1]}', "[" * 100_000, "\ud800"])
def test_edited_lines_of_a_log_do_not_stop_a_run(tmp_path, line):
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n{{"step": 9}}\n', errors="surrogatepass")
    open_at_step(path, 2).close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
