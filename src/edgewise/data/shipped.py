"""The rows that belong to the shipped models: made on the spot, without end."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgewise.data.batch import IGNORE, Batch, Data
from edgewise.pocket import addition, stream

FIRST_SEED = 7  # the shipped models were trained on the rows of seed 0; these are other ones


class SteppedRows:
    """Rows made from a step's number and how many are asked for; nothing but the number need be kept."""

    def __init__(self, name: str, context: int, rows: Callable[[int, int], Batch]):
        self.name, self.context, self._rows, self._step = name, context, rows, 0

    def take(self, n: int) -> Batch:
        self._step += 1
        return self._rows(self._step - 1, n)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = state["step"]


def shipped_data(name: str, seed: int, held_out_rows: int = 512) -> Data | None:
    """The data of a shipped model, by its name; None if that is not the name of one."""
    seed += FIRST_SEED
    if name == "pocket":
        train = SteppedRows(
            "pocket's own stream", stream.CONTEXT, lambda step, n: _text(stream.training_batch(seed, step, n))
        )
        return Data(train, _text(stream.held_out_text(held_out_rows, seed=0)))
    if name == "pocket-addition":
        train = SteppedRows(
            "pocket-addition's own sums",
            addition.CONTEXT,
            lambda step, n: _sums(*addition.random_sums(seed, step, n)),
        )
        # All 10,000 sums: the task's whole world. None can be held out, and all of them is what the model should know.
        return Data(train, _sums(*addition.every_sum()))
    return None


def _text(ids: Tensor) -> Batch:  # int64 [rows, 128]
    """Later documents of a row see earlier ones, as when the model was trained."""
    return Batch(ids, torch.nn.functional.pad(ids[:, 1:], (0, 1), value=IGNORE), None)


def _sums(ids: Tensor, digits: Tensor) -> Batch:  # int64 [rows, 11], [rows, 5]
    """A digit is asked for where the question mark is, not one position before."""
    targets = torch.full_like(ids, IGNORE)
    targets[:, addition.ANSWER] = digits
    return Batch(ids, targets, None)
