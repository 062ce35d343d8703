"""What post-training and evaluation read, wherever it comes from."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

IGNORE = -100
"""The target of a position where nothing is asked; `cross_entropy` leaves it out by default."""


class Batch(NamedTuple):
    """Rows of tokens. Targets belong to their position: they are not shifted again."""

    ids: Tensor  # int64 [rows, context]
    targets: Tensor  # int64 [rows, context]: what the logits at each position should say, or IGNORE
    positions: Tensor | None
    """int64 [rows, context], 0 where a document begins; None for plainly causal rows. Given as `position_ids` without an
    attention mask and with `use_cache=False`, they keep attention inside a document."""

    def part(self, rows: slice | Tensor, tokens: slice = slice(None)) -> "Batch":
        """Some rows, or the same tokens of each."""
        positions = None if self.positions is None else self.positions[rows][:, tokens]
        return Batch(self.ids[rows][:, tokens], self.targets[rows][:, tokens], positions)


class Rows(Protocol):
    """An endless stream of training rows, determined by a seed."""

    context: int
    name: str
    """For messages and summaries."""

    def take(self, n: int) -> Batch:
        """The next `n` rows."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is: a few numbers, fit for JSON."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, with the rows that would have come."""
        ...


class Data(NamedTuple):
    """What to train on, and what to measure on."""

    train: Rows
    held_out: Batch
    """Fixed rows, none of them in training."""
