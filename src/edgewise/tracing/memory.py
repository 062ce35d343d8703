"""How much memory a trace takes at its peak."""

import psutil

from edgewise.tracing.frozen import Frozen
from edgewise.tracing.graph import BATCH_BYTES
from edgewise.tracing.shares import KEPT_BYTES, bytes_per_layer

KEPT = 0.17
"""Share of the active features that pruning leaves, `pocket`'s on eight tokens."""
PRUNING = 48
"""Bytes for each pair of a target and a source while the graph is pruned: four such matrices, and the sorting of one in
double precision with its order."""


def peak(frozen: Frozen, active: int, logits: int) -> int:
    """The most that a trace will take, with what the process holds already."""
    layers, kept = len(frozen.layers), round(KEPT * active)
    pairs = (active + logits) * (frozen.length + active + layers * frozen.length)
    carried = layers * bytes_per_layer(frozen, kept, kept + frozen.length)
    return psutil.Process().memory_info().rss + of_stages(pairs, carried)


def of_stages(pairs: int, carried: int) -> int:
    """The largest of: building the graph, pruning it, splitting what is left over the heads."""
    return max(4 * pairs + 2 * BATCH_BYTES, PRUNING * pairs, 4 * pairs + min(carried, KEPT_BYTES))
