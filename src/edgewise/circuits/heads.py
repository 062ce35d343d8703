"""Circuits of heads: activation patching of every head in both directions, and the effect that the best k explain."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.circuits.curve import Ranks, measure_prefix, ranks
from edgewise.circuits.find_minimal import with_minimal
from edgewise.circuits.head_objective import HeadObjective
from edgewise.circuits.memory import copies_at_once, in_chunks
from edgewise.circuits.replay import RecordedRun, Replay
from edgewise.circuits.result import ComponentCircuit
from edgewise.circuits.search import Progress, Search
from edgewise.gating.tap import tap


class HeadEffects(NamedTuple):
    """Shares of the effect, [n, layers, heads] each."""

    lost: Tensor
    """When the head alone has its corrupt output in the clean run."""
    restored: Tensor
    """When the head alone has its clean output in the corrupt run."""

    @property
    def importance(self) -> Tensor:  # [n, layers, heads]
        """Mean of both: `lost` misses heads that others can replace, `restored` those that need others."""
        return (self.lost + self.restored) / 2


def effects_of_heads(search: Search) -> HeadEffects:
    """The effect of every head alone, on the prompts that are searched on: patched, or estimated by gradients."""
    n_heads = sum(outputs.shape[1] for outputs in search.replay.clean.outputs)
    if not search.config.patch_heads:
        with search.status(f"attributing {n_heads} heads"):
            return estimate_head_effects(search.replay, search.config.max_bytes)
    with search.bar(f"patching {n_heads} heads", 2 * n_heads * search.replay.n) as progress:
        return head_effects(search.replay, search.config.max_bytes, progress)


def find_heads(search: Search, effects: HeadEffects) -> ComponentCircuit:
    """Rank heads by their effect, and find the fewest that explain enough: of the ranking, and of all circuits."""
    replay, config = search.replay, search.config
    importance = effects.importance
    order = _ranks(replay, importance)
    objective = HeadObjective(search.splits, config.max_bytes)
    mean = importance.mean(0)  # [layers, heads]
    layers, heads = mean.shape
    names = [
        (f"L{i // heads}H{i % heads}", mean.flatten()[i].item()) for i in order.pooled.argsort().tolist()
    ]

    def keep_best(order: Tensor, counts: Tensor) -> Tensor:  # int64 [n, layers * heads], [p, n] -> [p, n]
        keep = order < counts[..., None].to(order.device)
        return scores_with_heads(replay, keep.unflatten(-1, (layers, heads)), config.max_bytes)

    with search.status("faithfulness of the best heads"):
        prefix = measure_prefix(search, objective, keep_best, order, names)
    return with_minimal(search, "heads", objective, order.pooled, prefix, search.config.minimal)


def _ranks(replay: Replay, importance: Tensor) -> Ranks:  # [n, layers, heads]
    """Heads by importance. Those with the same output in both runs, such as a twin's closed heads, come last: after heads
    that lower the metric when patched alone, which the circuit may need nevertheless."""
    runs = zip(replay.clean.outputs, replay.corrupt.outputs, strict=True)
    differs = torch.stack([(clean != corrupt).flatten(2).any(-1) for clean, corrupt in runs], 1)
    return Ranks(
        pooled=ranks(importance.mean(0).masked_fill(~differs.any(0), -torch.inf).flatten()),
        per_prompt=ranks(importance.masked_fill(~differs, -torch.inf).flatten(1)),
    )


@torch.no_grad()
def head_effects(replay: Replay, max_memory: int, progress: Progress = lambda copies: None) -> HeadEffects:
    """Patch every head, at all positions."""
    chunks = []
    for _, chunk in in_chunks(replay, copies_at_once(replay, max_memory)):
        lost = patch_heads(chunk, chunk.clean, chunk.corrupt, max_memory, progress)
        restored = patch_heads(chunk, chunk.corrupt, chunk.clean, max_memory, progress)
        chunks.append(torch.stack([1 - chunk.explained(lost), chunk.explained(restored)]))
    both = torch.cat(chunks, -1).permute(0, 3, 1, 2)  # [2, n, layers, heads]
    return HeadEffects(both[0], both[1])


def estimate_head_effects(replay: Replay, max_memory: int) -> HeadEffects:
    """First-order estimates of the same (attribution patching): (clean - corrupt) . d metric / d output, by the gradient of
    the clean run what is lost, by that of the corrupt run what is restored."""
    chunks, layers = [], len(replay.clean.outputs)
    for _, chunk in in_chunks(replay, max(1, copies_at_once(replay, max_memory) // layers)):
        lost, restored = (_attribution(chunk, run) for run in (chunk.clean, chunk.corrupt))
        chunks.append(torch.stack([lost, restored]) / chunk.effect[:, None, None])
    both = torch.cat(chunks, 1)  # [2, n, layers, heads]
    return HeadEffects(both[0], both[1])


def _attribution(replay: Replay, base: RecordedRun) -> Tensor:  # -> [n, layers, heads]
    with torch.enable_grad(), tap(replay.model, read=["outputs"]) as attention:
        metric = replay.scores(0, base.hidden[0][None].detach().requires_grad_())[0].sum()
        gradients = torch.autograd.grad(metric, [*attention.last["outputs"].values()])
    runs = zip(replay.clean.outputs, replay.corrupt.outputs, gradients, strict=True)
    return torch.stack([((clean - corrupt) * of_y).sum((2, 3)) for clean, corrupt, of_y in runs], 1)


def patch_heads(
    replay: Replay,
    base: RecordedRun,
    other: RecordedRun,
    max_memory: int,
    progress: Progress = lambda copies: None,
) -> Tensor:  # -> [layers, heads, n]
    """Metric of the run `base` when one head at a time has its output of the run `other`.

    All heads of a layer are one batch, which starts at that layer.
    """
    at_once = max(1, copies_at_once(replay, max_memory) // replay.n)
    layers = []
    for layer, (hidden, outputs) in enumerate(zip(base.hidden, other.outputs, strict=True)):
        scores = []
        for heads in _split(outputs.shape[1], at_once):
            copies = hidden.expand(len(heads), *hidden.shape)

            def edit(number: int, y: Tensor, layer=layer, heads=heads, outputs=outputs) -> Tensor | None:
                if number != layer:
                    return None
                y = y.clone().unflatten(0, (len(heads), -1))
                for copy, head in enumerate(heads):
                    y[copy, :, head] = outputs[:, head]
                return y.flatten(0, 1)

            scores.append(replay.scores(layer, copies, edit))
            progress(len(heads) * replay.n)
        layers.append(torch.cat(scores))
    return torch.stack(layers)


def _split(count: int, size: int) -> Iterator[range]:
    for first in range(0, count, size):
        yield range(first, min(count, first + size))


@torch.no_grad()
def scores_with_heads(replay: Replay, keep: Tensor, max_memory: int) -> Tensor:
    """Metric when some heads are computed and all others have their corrupt output.

    keep: bool [copies, n, layers, heads] -> [copies, n]
    """
    at_once = copies_at_once(replay, max_memory)
    chunks = [
        _scores_with_heads(chunk, keep[:, prompts], max(1, at_once // chunk.n))
        for prompts, chunk in in_chunks(replay, at_once)
    ]
    return torch.cat(chunks, 1)


def _scores_with_heads(replay: Replay, keep: Tensor, at_once: int) -> Tensor:
    scores, hidden = [], replay.clean.hidden[0]
    for keep_of_copies in keep.split(at_once):
        keep_of_batch = keep_of_copies.flatten(0, 1)  # [copies * n, layers, heads]

        def edit(layer: int, y: Tensor, keep=keep_of_batch) -> Tensor:
            corrupt = replay.corrupt.outputs[layer].repeat(len(keep) // replay.n, 1, 1, 1)
            return torch.where(keep[:, layer, :, None, None], y, corrupt)

        scores.append(replay.scores(0, hidden.expand(len(keep_of_copies), *hidden.shape), edit))
    return torch.cat(scores)
