"""The loss over the words that matter: in a small model with a large vocabulary, most of a step is the unembedding.

Almost all probability lies on the few thousand tokens that the text is made of. While training, both models' distributions
are taken over these alone: the ones the dense model finds likeliest on the first rows, and every token of the batch itself.
What is left out is probability that the dense model hardly gives and the text never asks for. Held-out losses are always
over the whole vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgewise.data import IGNORE, Batch
from edgewise.evaluation import parts, run_model

LIKELY = 4096
"""How many are always there."""
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


def words_of(batch: Batch, likely: Tensor) -> tuple[Tensor, Batch]:
    """All words for a batch, in order, and the batch with its targets counted among them."""
    asked = batch.targets != IGNORE
    words = torch.cat([likely, batch.targets[asked]]).unique()
    places = torch.searchsorted(words, batch.targets.clamp(min=0))
    return words, batch._replace(targets=torch.where(asked, places, IGNORE))


@contextmanager
def only(unembedding: nn.Module, words: Tensor | None) -> Iterator[None]:
    """A model's logits of some words, and none of the others; of all for None."""
    if words is None:
        yield
        return
    head: Any = unembedding
    bias = getattr(head, "bias", None)
    head.forward = lambda h: F.linear(h, head.weight[words], None if bias is None else bias[words])
    try:
        yield
    finally:
        del head.forward  # the class's own is there again
