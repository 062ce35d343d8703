"""Faithfulness curves: the effect explained by the k most important components, and the smallest k that explains enough."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.circuits.find_minimal import explained_on_splits
from edgewise.circuits.objective import Objective, weighted_share
from edgewise.circuits.replay import Replay
from edgewise.circuits.result import Curve, PrefixCircuit
from edgewise.circuits.search import Search
from edgewise.tasks.pairs import SEARCHED

KeepBest = Callable[[Tensor, Tensor], Tensor]
"""Ranks of m components, int64 [n, m], and counts k, int64 [points, n] -> metric, [points, n], when each prompt keeps the
components of rank below k and all others have corrupt activations."""
SharesAt = Callable[[Tensor], Tensor]
"""Counts, int64 [points, rankings] -> share of the effect, [points, rankings]."""

_CUTS = 4  # points inside an interval that is refined


class Ranks(NamedTuple):
    """Order of m components by importance; rank 0 is the most important."""

    pooled: Tensor  # int64 [m]: one order for all prompts
    per_prompt: Tensor  # int64 [n, m]


def ranks(importance: Tensor) -> Tensor:  # [..., m] -> int64 [..., m]
    """The rank of each component: 0 for the most important."""
    return importance.argsort(dim=-1, descending=True, stable=True).argsort(-1)


def measure_prefix(
    search: Search,
    objective: Objective,
    keep_best: KeepBest,
    order: Ranks,
    names: list[tuple[str, float]],
) -> PrefixCircuit:
    """Measure the curve of the pooled ranking and the circuit sizes that reach the threshold.

    names: Components with their importance, in the pooled order.
    """
    replay, threshold = search.replay, search.config.threshold
    sizes = [of.n for split, of in search.splits.items() if split in SEARCHED]
    curve, needed = pooled_curve(replay, sizes, keep_best, order.pooled, threshold)
    return PrefixCircuit(
        needed=needed,
        explained=explained_on_splits(objective, order.pooled.cpu() < needed),
        needed_per_prompt=needed_per_prompt(replay, keep_best, order.per_prompt, threshold),
        curve=curve,
        ranking=names,
    )


def pooled_curve(
    replay: Replay, sizes: list[int], keep_best: KeepBest, pooled: Tensor, threshold: float
) -> tuple[Curve, int]:  # pooled: int64 [m]
    """The curve of one ranking for all prompts, and the smallest count that reaches the threshold on each split of them,
    of `sizes` prompts."""
    scores_at: dict[int, Tensor] = {}  # by count, [n]

    def least_explained(counts: Tensor) -> Tensor:  # [points, 1] -> [points, 1]
        scores = keep_best(pooled.expand(replay.n, -1), counts.expand(-1, replay.n))
        scores_at.update(zip(counts[:, 0].tolist(), scores, strict=True))
        splits = zip(
            (scores - replay.corrupt.scores).split(sizes, 1), replay.effect.split(sizes), strict=True
        )
        return torch.stack([weighted_share(x, effect) for x, effect in splits], 1).amin(1, keepdim=True).cpu()

    refined = refine(least_explained, len(pooled), 1, threshold)
    counts = refined.counts.flatten().tolist()
    scores = torch.stack([scores_at[count] for count in counts])  # [points, n]
    shares = replay.mean_explained(scores).cpu().tolist()
    lower, upper = (replay.explained(scores).cpu().double().quantile(q, 1).tolist() for q in (0.25, 0.75))
    return Curve(counts, shares, lower, upper), int(refined.smallest)


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


def refine(explained: SharesAt, total: int, rankings: int, threshold: float) -> Refined:
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
