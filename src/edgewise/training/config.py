"""How a training is watched: settings that suit every run, and that tests of a few steps change."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainerConfig:
    validations: int = 24
    """Validations in a run, at most."""
    validation_work: float = 0.1
    """Work of all validations, at most, as a share of the work of the steps."""
    step_share: float = 0.8
    """Share of a run's minutes that is spent in steps, at least; a budget that does not allow it is refused. 0: none is."""
    least_steps: int = 10
    """Steps of a run of so many minutes, at least."""
    validation_tokens: int = 16_384
    """Held-out tokens of each validation; the final measurement takes all."""
    validation_share: float = 0.01
    """Held-out tokens of a validation that corrects the multiplier, at least, as a share of the run's tokens: what the
    multiplier is corrected by should hold on all held-out text."""
    slow_parameters: int = 50_000_000
    """On a CPU, a model of more parameters is slow to measure: it gets `slow_held_out_tokens` in all, and a quarter of
    `validation_tokens` in a validation."""
    slow_held_out_tokens: int = 16_384
    seconds_per_step: float | None = None
    """Time of a step, by which the run is planned; measured if None."""
