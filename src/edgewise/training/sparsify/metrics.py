"""What a step measures, and how micro-batches add up to it."""

from typing import NamedTuple

import torch
from torch import Tensor


class StepMetrics(NamedTuple):
    """Of one step, over all processes."""

    ce: float
    """The twin's cross-entropy, in nats per token; in the layer-wise warm-up its estimated KL from the dense model."""
    dense_ce: float
    """Of the dense model on the same batch; its held-out loss where the recipe's target is fixed."""
    kl: float
    """KL(dense || twin) in nats per token; 0 if the recipe does not compare the two on training batches."""
    density_per_head: Tensor  # [layers, heads]
    """Expected density on the training batch."""

    @property
    def density(self) -> float:
        return self.density_per_head.mean().item()

    @classmethod
    def from_terms(cls, terms: Tensor, heads: int) -> "StepMetrics":  # [3 + layers * heads]
        ce, dense_ce, kl = terms[:3].tolist()
        return cls(ce, dense_ce, kl, terms[3:].view(-1, heads).cpu())


def step_terms(ce: Tensor, dense_ce: Tensor, kl: Tensor, density_per_head: Tensor) -> Tensor:
    """A micro-batch's terms of the `StepMetrics`, which add up over micro-batches and processes; without gradients.

    [], [], [], [layers, heads] -> [3 + layers * heads]
    """
    return torch.cat([torch.stack([ce, dense_ce, kl]), density_per_head.flatten()]).detach()


class Scale(NamedTuple):
    """What turns a micro-batch's sums into terms of the step's loss."""

    n_targets: int
    """Predicted tokens of the step, over all processes."""
    pair_share: float
    """The micro-batch's share of the step's (query, key) pairs."""
    penalty: Tensor  # [layers, heads]
    """Weight of each head's density in the loss, see `penalty.py`."""
