"""Whether a twin has kept what it was held to, and what makes that doubtful."""

from typing import NamedTuple

from edgewise.measure.dense_comparison import DenseComparison


class Verdict(NamedTuple):
    kept: bool
    warnings: tuple[str, ...]
    """Why the figures say less than they seem to; one line each."""


def is_kept(delta_ce: float, kl: float, tolerance: float, constrains_kl: bool) -> bool:
    """Whether loss and KL divergence are within the tolerance. Where only the loss is constrained, a loss that is lower than
    the dense model's by more than the tolerance does not count: what the twin has gained by learning the text hides what it
    has lost."""
    if constrains_kl:
        return delta_ce <= tolerance and kl <= tolerance
    return abs(delta_ce) <= tolerance


def judge(comparison: DenseComparison, tolerance: float, constrains_kl: bool) -> Verdict:
    """Judge a twin by held-out text."""
    warnings = []
    if comparison.delta_ce < -tolerance:
        warnings.append(
            f"the twin's loss is {-comparison.delta_ce:.4f} nats lower than the dense model's: it has learned text that is "
            "foreign to the dense model, and the loss hides what closed attention costs; KL from the dense model is "
            f"{comparison.kl:.4f}"
        )
    if (needed := comparison.tokens_needed(tolerance)) > comparison.tokens:
        warnings.append(
            f"{comparison.tokens:,} held-out tokens are too few for a tolerance of {tolerance:g}: the loss difference has a "
            f"standard error of {comparison.delta_ce_error:.4f}; give at least {_rounded(needed):,} tokens (as `valid`, "
            "or more `data`)"
        )
    return Verdict(is_kept(comparison.delta_ce, comparison.kl, tolerance, constrains_kl), tuple(warnings))


def _rounded(n: int) -> int:
    """Up to two significant digits: an estimate."""
    unit = 10 ** max(0, len(str(n)) - 2)
    return -(-n // unit) * unit
