"""What training and evaluation read: batches of token sequences, wherever they come from."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from edgewise.core.devices import upload

IGNORE = -100
"""The target of a position without one; `cross_entropy` leaves it out by default."""


class Batch(NamedTuple):
    """Token sequences of equal length. Targets belong to their position: they are not shifted again."""

    ids: Tensor  # int64 [n, context]
    targets: Tensor  # int64 [n, context]: the next token, or IGNORE
    positions: Tensor | None
    """int64 [n, context], 0 where a document begins; None if each sequence is one document. Given as `position_ids` without
    an attention mask and with `use_cache=False`, they keep attention inside a document."""

    def select(self, sequences: slice | Tensor, tokens: slice = slice(None)) -> "Batch":
        """Some of the sequences, or the same tokens of each."""
        positions = None if self.positions is None else self.positions[sequences][:, tokens]
        return Batch(self.ids[sequences][:, tokens], self.targets[sequences][:, tokens], positions)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device."""
        positions = None if self.positions is None else upload(self.positions, device)
        return Batch(upload(self.ids, device), upload(self.targets, device), positions)

    def micro_batches(self, size: int, device: torch.device | str = "cpu") -> Iterator["Batch"]:
        """The batch in pieces of at most `size` sequences, each on `device`."""
        for first in range(0, len(self.ids), size):
            yield self.select(slice(first, first + size)).to(device)


class SequenceStream(Protocol):
    """An endless stream of training sequences, determined by a seed."""

    context: int
    """Tokens of a sequence."""
    name: str
    """For messages and summaries."""

    def take(self, n: int) -> Batch:
        """The next `n` sequences."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream, as a few numbers that fit into JSON."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position, with the sequences that would have come."""
        ...


class Data(NamedTuple):
    """Text to train on and text to evaluate on."""

    train: SequenceStream
    held_out: Batch
    """Fixed sequences, none of them in training."""
