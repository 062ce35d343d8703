"""How many steps and validations a run has: as many as its tokens and its time allow.

The minutes of a run count from its beginning: set-up, steps, validations and the measurement after the last step. At least
`step_share` of them are spent in steps, or the budget is refused with the number that would do. The number of validations
depends on tokens alone, so that a run of so many tokens is the same on every machine.
"""

import math
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from edgewise.core.errors import EdgewiseError
from edgewise.training.config import TrainerConfig
from edgewise.training.state import TrainingState
from edgewise.training.trainer import TrainingSettings

_DAY = 24 * 60 * 60
_VALIDATION_WORK = 1 / 3
"""Work of a validated token, in trained tokens: a forward pass, without the other model's and the backward pass."""


class Costs(NamedTuple):
    """Seconds, measured before the run is planned."""

    step: float
    setup: float = 0.0
    """Spent before the first step of this session."""
    validation: float = 0.0
    """Of one validation."""
    final: float = 0.0
    """Of the measurement after the last step."""
    warmup_steps: int = 0
    """Steps of another kind that come first and are still to do."""
    warmup: float = 0.0
    """Of all of these."""


def agreed(accelerator: Accelerator, *seconds: float) -> list[float]:
    """The longest of all processes: they must plan the same run."""
    gathered: Tensor = accelerator.gather(torch.tensor([seconds], device=accelerator.device))  # pyright: ignore
    return gathered.amax(0).tolist()


def check_token_limit(config: TrainingSettings, state: TrainingState) -> None:
    """Refuse fewer tokens than one step takes."""
    if config.token_limit is not None and config.token_limit < state.tokens_per_step:
        raise EdgewiseError(
            f"`tokens={config.token_limit}` is less than one step of {state.tokens_per_step:,} tokens; reduce `batch_size`"
        )


def begin_time(session: TrainingSettings, state: TrainingState, setup: float) -> None:
    """Count a session's set-up, and set the time that the run may take: the minutes that this session asks for, on top of
    what a resumed run has spent."""
    state.time_limit = (
        None if session.minute_limit is None else state.seconds_spent + 60 * session.minute_limit
    )
    state.seconds_spent += setup


def plan_steps(config: TrainingSettings, state: TrainingState, costs: Costs, validations: int = 0) -> int:
    """Steps of the whole run, those done included: at least one more. Without a limit, a day's."""
    limits = []
    if config.token_limit is not None:
        limits.append(config.token_limit // state.tokens_per_step)
    if state.time_limit is not None:
        seconds = state.time_limit - state.seconds_spent - costs.final - costs.warmup
        seconds -= validations * costs.validation
        limits.append(state.step + costs.warmup_steps + int(seconds / costs.step))
    if not limits:  # a density alone: no schedule to fit, so allow for a long one
        limits.append(state.step + int(_DAY / costs.step))
    return max(min(limits), state.step + 1)


def plan_validations(trainer: TrainerConfig, state: TrainingState, costs: Costs, tokens: int) -> int:
    """Validations of the whole run, each of `tokens` held-out tokens: few enough that they are a small part of its work."""
    work = state.planned_steps * state.tokens_per_step
    most = int(trainer.validation_work * work / (_VALIDATION_WORK * tokens))
    if state.time_limit is not None and costs.validation and trainer.step_share:
        idle = (1 - trainer.step_share) * state.time_limit - costs.setup - costs.final
        most = min(most, int(idle / costs.validation))
    return max(1, min(trainer.validations, most))


def check_time_limit(session: TrainingSettings, costs: Costs, trainer: TrainerConfig) -> None:
    """Refuse minutes of which too few are left for steps, and say how many would do."""
    if session.minute_limit is None or not trainer.step_share:
        return
    idle = costs.setup + costs.validation + costs.final
    fewest = idle + trainer.least_steps * costs.step + (costs.warmup if costs.warmup_steps else 0.0)
    needed = max(idle / (1 - trainer.step_share), fewest)
    if 60 * session.minute_limit < needed:
        raise EdgewiseError(
            f"`minutes={session.minute_limit:g}` is too little time: set-up took {costs.setup:.1f} s, a step takes "
            f"{costs.step:.2g} s, a validation about {costs.validation:.1f} s and the measurement at the end "
            f"{costs.final:.1f} s; give at least `minutes={_rounded_up(needed / 60)}`, or `tokens`"
        )


def _rounded_up(minutes: float) -> str:
    """To two digits, with a little room for a machine that is busier the next time."""
    minutes *= 1.1
    unit = 10.0 ** (math.floor(math.log10(minutes)) - 1)
    return f"{math.ceil(minutes / unit) * unit:g}"
