"""How many steps a run has: as many as its tokens and its time allow."""

from typing import NamedTuple

from edgewise.core.errors import EdgewiseError
from edgewise.training.state import TrainingState
from edgewise.training.trainer import TrainingSettings

_DAY = 24 * 60 * 60


class StepTimes(NamedTuple):
    """Measured before the run is planned."""

    seconds: float
    """Of one step."""
    warmup_steps: int = 0
    """Steps of another kind that come first and are still to do."""
    warmup_seconds: float = 0.0
    """Of all of these."""


def check_token_limit(config: TrainingSettings, state: TrainingState) -> None:
    """Refuse fewer tokens than one step takes."""
    if config.token_limit is not None and config.token_limit < state.tokens_per_step:
        raise EdgewiseError(
            f"`tokens={config.token_limit}` is less than one step of {state.tokens_per_step:,} tokens; reduce `batch_size`"
        )


def plan_steps(config: TrainingSettings, state: TrainingState, times: StepTimes) -> int:
    """Steps of the whole run, those done included: at least one more. Without a limit, a day's."""
    limits = []
    if config.token_limit is not None:
        limits.append(config.token_limit // state.tokens_per_step)
    if config.minute_limit is not None:
        seconds = 60 * config.minute_limit - times.warmup_seconds
        limits.append(state.step + times.warmup_steps + int(seconds / times.seconds))
    if not limits:  # a density alone: no schedule to fit, so allow for a long one
        limits.append(state.step + int(_DAY / times.seconds))
    return max(min(limits), state.step + 1)
