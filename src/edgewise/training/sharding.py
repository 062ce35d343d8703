"""A step's rows, divided: over processes, and what a part of them counts for."""

from edgewise.data import Batch


def share_of(batch: Batch, index: int, count: int) -> Batch:
    """One process's rows: contiguous, as equal as can be."""
    rows = len(batch.ids)
    span = slice(index * rows // count, (index + 1) * rows // count)
    return batch.select(span)


def pairs_of(batch: Batch) -> int:
    """(query, key) pairs that causal attention inside documents has."""
    if batch.positions is not None:
        return int((batch.positions + 1).sum())
    rows, context = batch.ids.shape
    return rows * context * (context + 1) // 2
