"""The batches of a run. The layer-wise warm-up trains several steps on each, and a snapshot may fall between these."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch, SequenceStream


def micro_batch_size(batch_size: int, processes: int, grad_accum: int) -> int:
    """Sequences in a forward pass of one process."""
    if batch_size % (processes * grad_accum):
        raise EdgewiseError(
            f"`batch_size={batch_size}` cannot be split evenly over {processes} processes x {grad_accum} micro-batches"
        )
    return batch_size // (processes * grad_accum)


class TrainingBatches:
    """Batches of a fixed number of sequences from a stream of training text."""

    def __init__(self, stream: SequenceStream, batch_size: int, micro_batch_size: int):
        self.stream, self.batch_size, self.micro_batch_size = stream, batch_size, micro_batch_size
        self.first_state = self._state_before = copy.deepcopy(stream.state_dict())
        self._batch: Batch | None = None

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.batch_size * self.stream.context

    def next(self, repeat: bool = False) -> Batch:
        """The next batch, or with `repeat` the current one; after a resume, that one is read again."""
        if repeat and self._batch is not None:
            return self._batch
        self._state_before = copy.deepcopy(self.stream.state_dict())
        self._batch = self.stream.take(self.batch_size)
        return self._batch

    def first(self, tokens: int) -> Batch:
        """The sequences that the run began with: what is estimated from them is the same after a resume."""
        with self.rewinding():
            self.stream.load_state_dict(copy.deepcopy(self.first_state))
            return self.stream.take(max(1, tokens // self.stream.context))

    @contextmanager
    def rewinding(self) -> Iterator[None]:
        """Restore the stream's position after a `with` block."""
        state = copy.deepcopy(self.stream.state_dict())
        try:
            yield
        finally:
            self.stream.load_state_dict(state)

    def state_dict(self, repeating: bool) -> dict[str, Any]:
        """Position of the stream after the current batch; with `repeating`, before it."""
        return self._state_before if repeating else self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batch = None
        self.stream.load_state_dict(state)
