"""An order of components for MIB's CMD, which asks for circuits that do as the whole model does: explaining more than it
does, by leaving out components that interfere, counts against them as explaining less."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from edgewise.circuits.mib import circuit_sizes
from edgewise.circuits.objective import Objective
from edgewise.tasks.pairs import SEARCHED


def faithful_order(
    objective: Objective, orders: Sequence[Tensor]
) -> Tensor:  # int64 [m] each -> int64 [m], the most important first
    """Drop components from all of them down to none, size after size. What is kept is proposed by the gradient at the
    current circuit, by its absolute value, and by each of `orders`; the proposal is taken whose share of the effect, on fit
    and validation prompts, is closest to 1. So the circuits of all sizes are nested."""
    current, dropped = torch.ones(objective.total, dtype=torch.bool), []
    of_orders = [-order.cpu().argsort().float() for order in orders]
    for size in _descending(objective.total):
        gradient = objective.gradient(current[None]).gradient[0].cpu()
        values = [gradient, gradient.abs(), *of_orders]
        best = [value.masked_fill(~current, -torch.inf).argsort(descending=True)[:size] for value in values]
        masks = torch.stack([torch.zeros_like(current).index_fill(0, kept, True) for kept in best])
        closest = int(_distance(objective, masks).argmin())
        gone = (current & ~masks[closest]).nonzero()[:, 0]
        dropped += gone[values[closest][gone].argsort()].tolist()
        current = masks[closest]
    return torch.tensor(dropped[::-1])


def _distance(objective: Objective, masks: Tensor) -> Tensor:  # bool [copies, m] -> [copies]
    """Distance of the share from 1, the mean over the splits that choices may depend on."""
    shares = [objective.explained(masks, split) for split in SEARCHED if split in objective.effects]
    return (1 - torch.stack(shares)).abs().mean(0)


def _descending(total: int) -> Iterator[int]:
    """MIB's sizes and one between each two, down to 0."""
    sizes = sorted({0, 1, *circuit_sizes(total)}, reverse=True)
    for larger, smaller in pairwise(sizes):
        between = round((larger * smaller) ** 0.5)
        if smaller < between < larger:
            yield between
        yield smaller
