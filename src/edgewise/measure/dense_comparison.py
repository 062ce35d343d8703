"""A twin against the dense model on the same text: how much loss it has gained, how far its predictions have moved, and how
exactly that is known."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.data.batch import IGNORE
from edgewise.measure.distillation import DistillationTerms

_BLOCK = 32
"""Tokens whose differences are summed before their variance is taken: those of neighbouring tokens are correlated."""
N_SUMS = 7


@dataclass(frozen=True)
class DenseComparison:
    """A twin against the dense model on the same tokens."""

    delta_ce: float
    """Loss of the twin minus that of the dense model, in nats per token."""
    kl: float
    """KL(dense || twin), in nats per token, over the whole vocabulary."""
    delta_ce_error: float
    """Standard error of `delta_ce`: what other text of the same kind and length would change."""
    tokens: int

    def tokens_needed(self, tolerance: float) -> int:
        """Tokens of text on which two standard errors of the loss difference are no more than a tolerance."""
        return math.ceil(self.tokens * (2 * self.delta_ce_error / tolerance) ** 2)


def comparison_sums(terms: DistillationTerms, targets: Tensor) -> Tensor:  # [n, t] each -> float64 [N_SUMS]
    """What adds up, over batches and processes, to a `DenseComparison`."""
    pad = -targets.shape[1] % _BLOCK
    difference, count = (
        torch.nn.functional.pad(x.double(), (0, pad)).unflatten(1, (-1, _BLOCK)).sum(-1)
        for x in (terms.ce - terms.dense_ce, targets != IGNORE)
    )  # [n, blocks]
    products = (difference * difference, difference * count, count * count, (count > 0).double())
    return torch.stack([terms.kl.double().sum(), difference.sum(), count.sum(), *(x.sum() for x in products)])


def dense_comparison(sums: Tensor) -> DenseComparison:  # [N_SUMS]
    """Ratio estimates, and the standard error of the loss difference over blocks of neighbouring tokens."""
    kl, difference, count, dd, dc, cc, blocks = sums.tolist()
    mean = difference / count
    squares = max(0.0, dd - 2 * mean * dc + mean * mean * cc)
    error = math.sqrt(squares * blocks / (blocks - 1)) / count if blocks > 1 else math.inf
    return DenseComparison(mean, kl / count, error, int(count))
