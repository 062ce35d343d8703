"""Circuits of heads as masks: heads in the circuit are computed, all others have their corrupt output."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor

from edgewise.circuits.memory import copies_at_once, in_chunks
from edgewise.circuits.objective import MaskGradient, Objective, majority
from edgewise.circuits.replay import Replay
from edgewise.models.architecture import decoder_layers
from edgewise.models.hooks import record_input
from edgewise.tasks.pairs import Split, shuffle_answers

SPREAD = 128
"""Patched prompts that are computed together at most; more do not fit into a processor's cache."""


class HeadObjective(Objective):
    """The heads of a model, numbered layer by layer."""

    def __init__(self, replays: dict[Split, Replay], max_memory: int) -> None:
        super().__init__()
        self.replays, self.max_memory = replays, max_memory
        outputs = replays["fit"].clean.outputs
        self.shape = len(outputs), outputs[0].shape[1]
        self.total = self.shape[0] * self.shape[1]
        self.device = outputs[0].device
        self.effects = {split: replay.effect.cpu() for split, replay in replays.items()}
        self.candidates = torch.stack([_differing(replay) for replay in replays.values()]).any(0).cpu()

    def names(self, components: Sequence[int]) -> list[str]:
        heads = self.shape[1]
        return [f"L{i // heads}H{i % heads}" for i in components]

    @torch.no_grad()
    def compute(self, masks: Tensor, split: Split) -> Tensor:
        replay = self.replays[split]
        chunks = in_chunks(replay, copies_at_once(replay, self.max_memory))
        scores = [self._scores(chunk, masks) - chunk.corrupt.scores for _, chunk in chunks]
        return torch.cat(scores, 1).cpu()

    def _scores(self, replay: Replay, masks: Tensor) -> Tensor:  # bool [copies, m] -> [copies, n]
        """Circuits start at the layer at which they first differ from their majority, which is computed once."""
        base = majority(masks)
        hidden, score = self._run_base(replay, base)
        layers = len(hidden)
        differs = (masks != base).unflatten(1, self.shape).any(2)
        first = torch.where(differs.any(1), differs.int().argmax(1), layers)
        scores = score.expand(len(masks), -1).clone()
        at_once = max(1, min(SPREAD, copies_at_once(replay, self.max_memory)) // replay.n)
        for layer in first[first < layers].unique().tolist():
            for copies in (first == layer).nonzero()[:, 0].split(at_once):
                entering = hidden[layer].expand(len(copies), *hidden[layer].shape)
                scores[copies] = _patched_scores(replay, layer, entering, self._grid(masks[copies]))
        return scores

    def _run_base(self, replay: Replay, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        """What enters each layer with one circuit, [n, t, D] each, and the metric, [n]."""
        hidden: list[Tensor] = []
        with ExitStack() as stack:
            for layer in decoder_layers(replay.model):
                stack.enter_context(record_input(layer, hidden))
            scores = _patched_scores(replay, 0, replay.clean.hidden[0][None], self._grid(mask[None]))
        return [replay.clean.hidden[0], *hidden[1:]], scores[0]

    def _grid(self, masks: Tensor) -> Tensor:  # [copies, m] -> [copies, layers, heads], on the model's device
        return masks.unflatten(1, self.shape).to(self.device)

    def gradient(
        self, masks: Tensor, weights: Tensor | None = None, wanted: Tensor | None = None
    ) -> MaskGradient:
        replay = self.replays["fit"]
        weights = torch.ones(replay.n) if weights is None else weights
        used = weights.nonzero()[:, 0]
        replay, weights = replay.select(used), weights[used].to(replay.effect)
        total = (replay.effect * weights).sum()
        explained, gradient = torch.zeros(len(masks)), torch.zeros_like(masks, dtype=torch.float)
        at_once = max(1, copies_at_once(replay, self.max_memory) // (self.shape[0] * len(masks)))
        for prompts, chunk in in_chunks(replay, at_once):
            keep = masks.detach().to(chunk.clean.hidden[0].dtype).requires_grad_()
            entering = chunk.clean.hidden[0].expand(len(masks), *chunk.clean.hidden[0].shape)
            with torch.enable_grad():
                scores = _patched_scores(chunk, 0, entering, self._grid(keep))
                share = ((scores - chunk.corrupt.scores) * weights[prompts]).sum(1) / total
            explained = explained + share.detach().cpu()
            gradient = gradient + torch.autograd.grad(share.sum(), keep)[0].cpu()
        return MaskGradient(explained, gradient)

    def shuffled(self, seed: int) -> "HeadObjective":
        shuffled = HeadObjective({"fit": shuffle(self.replays["fit"], seed)}, self.max_memory)
        shuffled.effects = {"fit": self.effects["fit"]}
        return shuffled


def _patched_scores(replay: Replay, layer: int, entering: Tensor, keep: Tensor) -> Tensor:
    """Metric of copies of the prompts that enter a layer, [copies, n, t, D], with heads kept, computed or mixed with their
    corrupt output: [copies, layers, heads], bool or between 0 and 1. -> [copies, n]"""

    def edit(number: int, y: Tensor) -> Tensor:  # [copies * n, heads, t, d]
        corrupt, kept = replay.corrupt.outputs[number], keep[:, None, number, :, None, None]
        computed = y.unflatten(0, (len(keep), replay.n))
        if keep.dtype == torch.bool:
            return torch.where(kept, computed, corrupt).flatten(0, 1)
        return (corrupt + kept * (computed - corrupt)).flatten(0, 1)

    return replay.scores(layer, entering, edit)


def _differing(replay: Replay) -> Tensor:  # -> bool [layers * heads]
    runs = zip(replay.clean.outputs, replay.corrupt.outputs, strict=True)
    return torch.cat([(clean != corrupt).transpose(0, 1).flatten(1).any(1) for clean, corrupt in runs])


@torch.no_grad()
def shuffle(replay: Replay, seed: int) -> Replay:
    """The same runs, scored by the answers of other prompts."""
    scored = replace(replay, prompts=shuffle_answers(replay.prompts, seed))
    runs = []
    for run in (replay.clean, replay.corrupt):
        scores = scored.scores(len(run.hidden) - 1, run.hidden[-1][None])[0]
        runs.append(replace(run, scores=scores))
    return replace(scored, clean=runs[0], corrupt=runs[1])
