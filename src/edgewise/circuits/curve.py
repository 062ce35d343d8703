"""Faithfulness curves: the effect explained by the k most important components, and the smallest k that explains enough."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.circuits.replay import Replay
from edgewise.circuits.result import ComponentCircuit, Curve

KeepBest = Callable[[Tensor, Tensor], Tensor]
"""Ranks of m components, int64 [n, m], and counts k, int64 [points, n] -> metric, [points, n], when each prompt keeps the
components of rank below k and all others have corrupt activations."""
Explained = Callable[[Tensor], Tensor]
"""Counts, int64 [points, rankings] -> share of the effect, [points, rankings]."""

_CUTS = 4  # points inside an interval that is refined


class Ranks(NamedTuple):
    """Order of m components by importance; rank 0 is the most important."""

    pooled: Tensor  # int64 [m]: one order for all prompts
    per_prompt: Tensor  # int64 [n, m]


def ranks(importance: Tensor) -> Tensor:  # [..., m] -> int64 [..., m]
    """The rank of each component: 0 for the most important."""
    return importance.argsort(dim=-1, descending=True, stable=True).argsort(-1)


def measure_circuit(
    replay: Replay, keep_best: KeepBest, order: Ranks, names: list[tuple[str, float]], threshold: float
) -> ComponentCircuit:
    """Measure the curve of the pooled ranking and the circuit sizes that reach the threshold.

    names: Components with their importance, in the pooled order.
    """
    curve, needed = pooled_curve(replay, keep_best, order.pooled, threshold)
    return ComponentCircuit(
        total=order.pooled.shape[0],
        needed=needed,
        faithfulness=curve.explained[curve.counts.index(needed)],
        needed_per_prompt=needed_per_prompt(replay, keep_best, order.per_prompt, threshold),
        curve=curve,
        ranking=names,
    )


def pooled_curve(
    replay: Replay, keep_best: KeepBest, pooled: Tensor, threshold: float
) -> tuple[Curve, int]:  # pooled: int64 [m]
    """The curve of one ranking for all prompts, and the smallest count that reaches the threshold."""
    shares_of_prompts: dict[int, Tensor] = {}  # by count, [n]

    def explained(counts: Tensor) -> Tensor:  # [points, 1] -> [points, 1]
        scores = keep_best(pooled.expand(replay.n, -1), counts.expand(-1, replay.n))
        shares_of_prompts.update(zip(counts[:, 0].tolist(), replay.explained(scores).cpu(), strict=True))
        return replay.mean_explained(scores)[:, None].cpu()

    refined = refine(explained, len(pooled), 1, threshold)
    counts, shares, smallest = (x.flatten().tolist() for x in refined)
    per_prompt = torch.stack([shares_of_prompts[count] for count in counts]).double()  # [points, n]
    lower, upper = (per_prompt.quantile(q, 1).tolist() for q in (0.25, 0.75))
    return Curve(counts, shares, lower, upper), smallest[0]


def needed_per_prompt(replay: Replay, keep_best: KeepBest, order: Tensor, threshold: float) -> list[int]:
    """The smallest count that reaches the threshold on each prompt, with its own ranking, int64 [n, m]."""

    def explained(counts: Tensor) -> Tensor:  # [points, n] -> [points, n]
        return replay.explained(keep_best(order, counts)).cpu()

    return refine(explained, order.shape[1], replay.n, threshold).smallest.tolist()


class Refined(NamedTuple):
    """Curves of several rankings, [points, rankings], and the smallest count of each that reaches the threshold."""

    counts: Tensor
    shares: Tensor
    smallest: Tensor  # int64 [rankings]


def refine(explained: Explained, total: int, rankings: int, threshold: float) -> Refined:
    """Measure curves on a grid, then, where each first crosses the threshold, at finer and finer counts down to 1.

    A crossing that comes and goes between two points of the grid is not seen.
    """
    counts = torch.tensor(grid(total))[:, None].expand(-1, rankings)
    shares = explained(counts)
    while True:
        below, above = _crossing(counts, shares, threshold)
        gap = above - below
        if (gap <= 1).all():
            return Refined(counts, shares, above)
        steps = torch.arange(1, _CUTS + 1)[:, None]
        between = torch.unique(below + (gap * steps + _CUTS) // (_CUTS + 1), dim=0)
        order = torch.cat([counts, between]).sort(dim=0, stable=True)
        counts = order.values
        shares = torch.cat([shares, explained(between)]).gather(0, order.indices)


def grid(total: int) -> list[int]:
    """Counts of the first pass: 0, the small ones, then a third more each time, and `total`."""
    counts, next_ = [0], 1
    while next_ < total:
        counts.append(next_)
        next_ = max(next_ + 1, round(next_ * 1.33))
    return [*counts, total]


def _crossing(counts: Tensor, shares: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The last count before the threshold is first reached, and the first that reaches it, [rankings] each."""
    reached = shares >= threshold
    reached[-1] = True  # all components explain everything, up to rounding
    point = reached.int().argmax(0, keepdim=True)
    above = counts.gather(0, point)[0]
    below = counts.gather(0, (point - 1).clamp(min=0))[0]
    return torch.where(point[0] == 0, above, below), above
