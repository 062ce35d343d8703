"""The loss over the words that matter: in a small model with a large vocabulary, most of a step is the unembedding.

Almost all probability lies on the few thousand tokens that the text is made of. While training, both models' distributions
are taken over these: the ones the dense model finds likeliest on the first rows, and every token of the batch itself. The
others cannot be left out: what a twin gives to words that nobody looks at, it takes from the others unseen (SmolLM2-135M
on encyclopedia text with 2 % of its edges: +0.092 nats over such words, +0.136 over all). So a random sample of them,
another one at every step, stands for the rest: each sampled logit is raised by the logarithm of how many words it stands
for, which makes the sum of exponentials right on average. Held-out losses are always over the whole vocabulary.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgewise.data import IGNORE, Batch
from edgewise.measure.evaluation import parts, run_model

LIKELY = 4096
"""How many are always there."""
OTHERS = 2048
"""How many stand for all others."""
TOKENS = 8192
"""Tokens of text on which the dense model is asked what it finds likely."""


def is_large(vocabulary: int) -> bool:
    """Whether there is something to gain; smaller ones are taken whole."""
    return vocabulary >= 2 * LIKELY


@torch.no_grad()
def likely_words(dense: nn.Module, batch: Batch, rows: int) -> Tensor:  # -> [LIKELY]
    """The tokens to which a model gives most probability on a text."""
    device = next(dense.parameters()).device
    total: Tensor | float = 0.0
    for part in parts(batch, rows, device):
        total = total + run_model(dense, part).float().softmax(-1).sum((0, 1))
    assert isinstance(total, Tensor)
    return total.topk(LIKELY).indices


class Words(NamedTuple):
    """The words whose logits are computed."""

    which: Tensor  # int64 [W]
    raised: Tensor  # [W]: the logarithm of how many words each stands for


def words_of(
    batch: Batch, likely: Tensor, vocabulary: int, generator: torch.Generator
) -> tuple[Words, Batch]:
    """For a batch, the words that matter, in order, then the sample; and the batch with its targets counted among them."""
    asked = batch.targets != IGNORE
    certain = torch.cat([likely, batch.targets[asked]]).unique()
    is_other = torch.ones(vocabulary, dtype=torch.bool, device=certain.device)
    is_other[certain] = False
    others = is_other.nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), generator=generator)[:OTHERS].to(others.device)]
    raised = torch.zeros(len(certain) + len(drawn), device=certain.device)
    raised[len(certain) :] = math.log(max(1, len(others)) / max(1, len(drawn)))
    places = torch.searchsorted(certain, batch.targets.clamp(min=0))
    words = Words(torch.cat([certain, drawn]), raised)
    return words, batch._replace(targets=torch.where(asked, places, IGNORE))


@contextmanager
def only(unembedding: nn.Module, words: Words | None) -> Iterator[None]:
    """A model's logits of some words, and none of the others; of all for None."""
    if words is None:
        yield
        return
    head: Any = unembedding
    bias = getattr(head, "bias", None)
    raised = words.raised if bias is None else bias[words.which] + words.raised
    head.forward = lambda h: F.linear(h, head.weight[words.which], raised.to(head.weight.dtype))
    try:
        yield
    finally:
        del head.forward  # the class's own is there again
