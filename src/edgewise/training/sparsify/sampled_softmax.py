"""Sampled softmax: in a small model with a large vocabulary, most of a step is the unembedding.

Almost all probability is on the few thousand tokens that the text is made of. In training, both models' distributions are
taken over a candidate vocabulary: the tokens likeliest under the dense model on the first sequences, every target of the
batch, and a random sample of all others, another one at every step. The sample cannot be left out: probability that a twin
gives to tokens outside of the candidates would go unseen (SmolLM2-135M on encyclopedia text with 2 % of its edges: +0.092
nats over such candidates, +0.136 over all tokens). Each sampled logit is raised by the logarithm of the number of tokens it
stands for, which makes the partition function right in expectation. Held-out losses are over the whole vocabulary.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgewise.core.devices import upload
from edgewise.data import IGNORE, Batch
from edgewise.measure.forward import run_model
from edgewise.training.sparsify.batches import TrainingBatches

N_LIKELY = 4096
"""Tokens that are always candidates."""
N_SAMPLED = 2048
"""Tokens sampled from all others."""
_ESTIMATION_TOKENS = 8192
"""Text on which the dense model's likeliest tokens are estimated."""


def is_sampled(vocabulary: int, n_likely: int = N_LIKELY) -> bool:
    """Whether a vocabulary is large enough to gain from sampling; smaller ones are taken whole."""
    return vocabulary >= 2 * n_likely


class Candidates(NamedTuple):
    """The tokens whose logits are computed."""

    tokens: Tensor  # int64 [C]
    log_weights: Tensor  # [C]: logarithm of the number of tokens that each stands for

    def to(self, device: torch.device) -> "Candidates":
        return Candidates(upload(self.tokens, device), upload(self.log_weights, device))


@torch.no_grad()
def likely_tokens(dense: nn.Module, batch: Batch, micro_batch_size: int, n: int = N_LIKELY) -> Tensor:
    """The tokens with the highest mean probability on a batch, int64 [n], on the CPU."""
    device = next(dense.parameters()).device
    total: Tensor | float = 0.0
    for micro_batch in batch.micro_batches(micro_batch_size, device):
        total = total + run_model(dense, micro_batch).float().softmax(-1).sum((0, 1))
    assert isinstance(total, Tensor)
    return total.topk(n).indices.cpu()


def draw_candidates(
    batch: Batch, likely: Tensor, vocabulary: int, generator: torch.Generator, n_sampled: int = N_SAMPLED
) -> tuple[Candidates, Batch]:
    """Candidates for a batch, likely tokens and targets sorted, then the sample; and the batch with its targets as indices
    into them."""
    has_target = batch.targets != IGNORE
    certain = torch.cat([likely, batch.targets[has_target]]).unique()
    is_other = torch.ones(vocabulary, dtype=torch.bool, device=certain.device)
    is_other[certain] = False
    others = is_other.nonzero()[:, 0]
    sampled = others[torch.randperm(len(others), generator=generator)[:n_sampled].to(others.device)]
    log_weights = torch.zeros(len(certain) + len(sampled), device=certain.device)
    log_weights[len(certain) :] = math.log(max(1, len(others)) / max(1, len(sampled)))
    indices = torch.searchsorted(certain, batch.targets.clamp(min=0))
    candidates = Candidates(torch.cat([certain, sampled]), log_weights)
    return candidates, batch._replace(targets=torch.where(has_target, indices, IGNORE))


class CandidateSampler:
    """Draws the candidate vocabulary of each step: the same for twin and dense model, before and after a resume."""

    def __init__(
        self,
        dense: nn.Module,
        batches: TrainingBatches,
        seed: int,
        n_likely: int = N_LIKELY,
        n_sampled: int = N_SAMPLED,
    ):
        self._dense, self._batches, self._seed = dense, batches, seed
        self._n_likely, self._n_sampled = n_likely, n_sampled
        unembedding: Any = dense.get_output_embeddings()  # pyright: ignore
        self._vocabulary = len(unembedding.weight)
        self._likely: Tensor | None = None  # int64 [n_likely]

    def draw(self, micro_batch: Batch, step: int) -> tuple[Candidates | None, Batch]:
        """Candidates, None for the whole vocabulary, and the micro-batch with its targets as indices into them."""
        if not is_sampled(self._vocabulary, self._n_likely):
            return None, micro_batch
        if self._likely is None:
            batch, size = self._batches.first(_ESTIMATION_TOKENS), self._batches.micro_batch_size
            self._likely = likely_tokens(self._dense, batch, size, self._n_likely)
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        return draw_candidates(micro_batch, self._likely, self._vocabulary, generator, self._n_sampled)


@contextmanager
def restricted_to(unembedding: nn.Module, candidates: Candidates | None) -> Iterator[None]:
    """Let an unembedding compute the logits of the candidates only, inside a `with` block; of all tokens for None."""
    if candidates is None:
        yield
        return
    head: Any = unembedding
    bias, (tokens, log_weights) = getattr(head, "bias", None), candidates
    offsets = log_weights if bias is None else bias[tokens] + log_weights
    head.forward = lambda h: F.linear(h, head.weight[tokens], offsets.to(head.weight.dtype))
    try:
        yield
    finally:
        del head.forward  # the class's own is there again
