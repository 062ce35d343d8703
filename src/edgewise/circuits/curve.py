"""Keep the best k of something, corrupt the rest: how much of the effect is explained, and how few k explain enough."""

from collections.abc import Callable

import torch
from torch import Tensor

from edgewise.circuits.replay import Replay
from edgewise.circuits.result import Curve

Explained = Callable[[Tensor], Tensor]
"""Counts, int64 [p, m] -> share of the effect, [p, m]: p points for each of m rankings (one pooled, or one a prompt)."""

_BETWEEN = 4  # points to cut an interval with


def grid(total: int) -> list[int]:
    """Counts to begin with: all small ones, then a third more each time, and all."""
    counts, next_ = [0], 1
    while next_ < total:
        counts.append(next_)
        next_ = max(next_ + 1, round(next_ * 1.33))
    return [*counts, total]


def trace(explained: Explained, total: int, rankings: int, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """The curve, and the smallest count on it that reaches the threshold, of each ranking.

    Gives counts and shares, each [points, rankings] in the order of counts, and int64 [rankings]. Between two points of the
    grid the curve is looked at where it first crosses the threshold, and there down to single counts; a crossing that comes
    and goes between two points of the grid is not seen.
    """
    counts = torch.tensor(grid(total))[:, None].expand(-1, rankings)
    shares = explained(counts)
    while True:
        below, above = _crossing(counts, shares, threshold)
        gap = above - below
        if (gap <= 1).all():
            return counts, shares, above
        steps = torch.arange(1, _BETWEEN + 1)[:, None]
        between = torch.unique(below + (gap * steps + _BETWEEN) // (_BETWEEN + 1), dim=0)
        order = torch.cat([counts, between]).sort(dim=0, stable=True)
        counts = order.values
        shares = torch.cat([shares, explained(between)]).gather(0, order.indices)


def pooled_curve(
    replay: Replay, scores: Callable[[Tensor], Tensor], total: int, threshold: float
) -> tuple[Curve, int]:
    """The curve of one ranking for all prompts, and the smallest count on it that reaches the threshold.

    scores: counts, int64 [p, n] -> the metric, [p, n]
    """
    of_prompts: dict[int, Tensor] = {}

    def explained(counts: Tensor) -> Tensor:
        found = scores(counts.expand(-1, replay.n))
        of_prompts.update(zip(counts[:, 0].tolist(), replay.share(found).cpu(), strict=True))
        return replay.pooled_share(found)[:, None].cpu()

    found = trace(explained, total, 1, threshold)
    counts, shares, needed = (x.flatten().tolist() for x in found)
    each = torch.stack([of_prompts[count] for count in counts]).double()  # [points, n]
    lower, upper = (each.quantile(q, 1).tolist() for q in (0.25, 0.75))
    return Curve(counts, shares, lower, upper), needed[0]


def _crossing(counts: Tensor, shares: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The first count that reaches the threshold and the last one before it, [rankings] each."""
    reached = shares >= threshold
    reached[-1] = True  # everything explains everything, up to rounding
    place = reached.int().argmax(0, keepdim=True)
    above = counts.gather(0, place)[0]
    below = counts.gather(0, (place - 1).clamp(min=0))[0]
    return torch.where(place[0] == 0, above, below), above


def ranks(importance: Tensor) -> Tensor:  # [..., m] -> int64 [..., m]
    """The place of each in the order of importance: 0 for the most important."""
    return importance.argsort(dim=-1, descending=True, stable=True).argsort(-1)
