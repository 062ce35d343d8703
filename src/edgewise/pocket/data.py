"""Text for training and evaluation, generated on the spot and without end."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgewise.data.batch import IGNORE, Batch, Data
from edgewise.pocket import addition, stream

FIRST_SEED = 7
"""Seed 0 made the text that the models were trained on; other seeds make other text."""


class GeneratedSequences:
    """Training sequences made from (step, number of sequences); the step is their whole state."""

    def __init__(self, name: str, context: int, generate: Callable[[int, int], Batch]):
        self.name, self.context, self._generate, self._step = name, context, generate, 0

    def take(self, n: int) -> Batch:
        self._step += 1
        return self._generate(self._step - 1, n)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = state["step"]


def pocket_data(seed: int, held_out: int) -> Data:
    """Sentences of the pocket world; `held_out` sequences of combinations that training never contains."""
    seed += FIRST_SEED
    train = GeneratedSequences(
        "pocket's own stream",
        stream.CONTEXT,
        lambda step, n: _text_batch(stream.training_batch(seed, step, n)),
    )
    return Data(train, _text_batch(stream.held_out_text(held_out, seed=0)))


def addition_data(seed: int, held_out: int) -> Data:
    """Random sums. Held out are all 10,000, whatever `held_out` says: all of them is what the model should know."""
    seed += FIRST_SEED
    train = GeneratedSequences(
        "pocket-addition's own sums",
        addition.CONTEXT,
        lambda step, n: _sums_batch(*addition.random_sums(seed, step, n)),
    )
    return Data(train, _sums_batch(*addition.every_sum()))


def _text_batch(ids: Tensor) -> Batch:  # int64 [n, 128]
    """Next-token targets; later documents of a sequence attend to earlier ones, as when the model was trained."""
    return Batch(ids, torch.nn.functional.pad(ids[:, 1:], (0, 1), value=IGNORE), None)


def _sums_batch(ids: Tensor, digits: Tensor) -> Batch:  # int64 [n, 11], [n, 5]
    """Targets at the question marks themselves, not one position before."""
    targets = torch.full_like(ids, IGNORE)
    targets[:, addition.ANSWER] = digits
    return Batch(ids, targets, None)
