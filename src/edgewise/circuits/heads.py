"""Which heads carry a behaviour: exact patching of every head, in both directions, and what the best k explain."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.circuits.curve import pooled_curve, ranks, trace
from edgewise.circuits.memory import in_parts, rows_at_once
from edgewise.circuits.replay import Recorded, Replay
from edgewise.circuits.result import Curve

Advance = Callable[[int], None]
"""Told how many rows have been run."""


class HeadEffects(NamedTuple):
    """Shares of the effect, [n, layers, heads] each."""

    lost: Tensor
    """When the head alone is corrupt in the clean run."""
    restored: Tensor
    """When the head alone is clean in the corrupt run."""

    @property
    def importance(self) -> Tensor:  # [n, layers, heads]
        """Heads are ranked by the mean of both: one misses heads that others can stand in for, the other those that need
        others."""
        return (self.lost + self.restored) / 2


@torch.no_grad()
def head_effects(replay: Replay, max_memory: int, advance: Advance = lambda rows: None) -> HeadEffects:
    """Patch every head at all positions. All heads of a layer are one batch, begun at that layer."""
    parts = []
    for _, part in in_parts(replay, max_memory):
        lost = patch_heads(part, part.clean, part.corrupt, max_memory, advance)
        restored = patch_heads(part, part.corrupt, part.clean, max_memory, advance)
        parts.append(torch.stack([1 - part.share(lost), part.share(restored)]))
    both = torch.cat(parts, -1).permute(0, 3, 1, 2)  # [2, n, layers, heads]
    return HeadEffects(both[0], both[1])


def patch_heads(
    replay: Replay, base: Recorded, other: Recorded, max_memory: int, advance: Advance
) -> Tensor:  # -> [layers, heads, n]
    """The metric of `base` when one head at a time is what it was in `other`."""
    at_once = rows_at_once(replay, max_memory)
    layers = []
    for layer, (hidden, outputs) in enumerate(zip(base.hidden, other.outputs, strict=True)):
        found = []
        for heads in _chunks(outputs.shape[1], max(1, at_once // replay.n)):
            copies = hidden.expand(len(heads), *hidden.shape)

            def edit(at: int, y: Tensor, layer=layer, heads=heads, outputs=outputs) -> Tensor | None:
                if at != layer:
                    return None
                y = y.clone().unflatten(0, (len(heads), -1))
                for copy, head in enumerate(heads):
                    y[copy, :, head] = outputs[:, head]
                return y.flatten(0, 1)

            found.append(replay.scores(layer, copies, edit))
            advance(len(heads) * replay.n)
        layers.append(torch.cat(found))
    return torch.stack(layers)


def _chunks(count: int, size: int) -> Iterator[range]:
    for first in range(0, count, size):
        yield range(first, min(count, first + size))


@torch.no_grad()
def scores_keeping(replay: Replay, keep: Tensor, max_memory: int) -> Tensor:
    """The metric when only some heads are computed and all others are what they were in the corrupt run.

    keep: bool [copies, n, layers, heads] -> [copies, n]
    """
    parts = in_parts(replay, max_memory)
    if len(parts) > 1:
        found = [scores_keeping(part, keep[:, chunk], max_memory) for chunk, part in parts]
        return torch.cat(found, 1)
    found = []
    for some in keep.split(max(1, rows_at_once(replay, max_memory) // replay.n)):
        rows = some.flatten(0, 1)  # [copies * n, layers, heads]

        def edit(layer: int, y: Tensor, rows=rows) -> Tensor:
            corrupt = replay.corrupt.outputs[layer].repeat(len(rows) // replay.n, 1, 1, 1)
            return torch.where(rows[:, layer, :, None, None], y, corrupt)

        hidden = replay.clean.hidden[0]
        found.append(replay.scores(0, hidden.expand(len(some), *hidden.shape), edit))
    return torch.cat(found)


def differ(replay: Replay) -> Tensor:  # -> bool [n, layers, heads]
    """Whether a head does anything else in the corrupt run."""
    pairs = zip(replay.clean.outputs, replay.corrupt.outputs, strict=True)
    return torch.stack([(clean != corrupt).flatten(2).any(-1) for clean, corrupt in pairs], 1)


class HeadCurves(NamedTuple):
    """What the best k heads explain."""

    curve: Curve
    """Heads ranked by their mean importance."""
    at_threshold: int
    at_threshold_per_prompt: list[int]
    """With each prompt's own ranking."""
    order: list[int]
    """All heads, the most important first."""


def head_curves(replay: Replay, importance: Tensor, threshold: float, max_memory: int) -> HeadCurves:
    """Keep the k most important heads, corrupt the rest, for all k that matter. importance: [n, layers, heads]

    Heads that do the same in both runs, as a twin's closed ones, come last: after those that seem to do harm when patched
    alone, which may be needed all the same.
    """
    n, layers, heads = importance.shape
    moved = differ(replay)
    own_places = ranks(importance.masked_fill(~moved, -torch.inf).flatten(1))
    pooled_places = ranks(importance.mean(0).masked_fill(~moved.any(0), -torch.inf).flatten())

    def keeping(places: Tensor, counts: Tensor) -> Tensor:  # [n, m], [p, n] -> [p, n]
        keep = places < counts[..., None].to(places.device)
        return scores_keeping(replay, keep.unflatten(-1, (layers, heads)), max_memory)

    curve, needed = pooled_curve(
        replay, lambda counts: keeping(pooled_places.expand(n, -1), counts), layers * heads, threshold
    )
    _, _, own = trace(
        lambda counts: replay.share(keeping(own_places, counts)).cpu(), layers * heads, n, threshold
    )
    return HeadCurves(curve, needed, own.tolist(), pooled_places.argsort().tolist())
