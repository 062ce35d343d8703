"""How much memory a trace takes at its peak."""

from dataclasses import dataclass

import psutil

from edgewise.errors import EdgewiseError
from edgewise.tracing.frozen import Frozen
from edgewise.tracing.graph import BATCH_BYTES, Readout
from edgewise.tracing.shares import KEPT_BYTES, bytes_per_layer
from edgewise.transcoder.transcoder import Transcoder

KEPT = 0.17
"""Share of the active features that pruning leaves, `pocket`'s on eight tokens."""
PRUNING = 48
"""Bytes for each pair of a target and a source while the graph is pruned: four such matrices, and the sorting of one in
double precision with its order."""


@dataclass(frozen=True)
class Plan:
    """What will be computed, and what that takes."""

    active: int
    """Features."""
    length: int
    more: int
    """Bytes, beside what the process holds already."""

    def __str__(self) -> str:
        total = psutil.Process().memory_info().rss + self.more
        return f"{self.active:,} active features on {self.length} tokens; memory about {total / 2**30:.1f} GB in all"

    def check_fits(self) -> None:
        free = psutil.virtual_memory().available
        if self.more > free:
            raise EdgewiseError(
                f"{self.active:,} features are active on {self.length} tokens, and a trace of them would take "
                f"{self.more / 2**30:.0f} GB where {free / 2**30:.0f} are free; train the transcoder for longer or with a "
                "higher --l0, so that fewer are active, or give a shorter prompt"
            )


def plan_of(frozen: Frozen, transcoder: Transcoder, readout: Readout) -> Plan:
    active = int((transcoder.encode(frozen.mlp_inputs) > 0).sum())
    return Plan(active, frozen.length, more(frozen, active, len(readout.tokens)))


def more(frozen: Frozen, active: int, logits: int) -> int:
    """The most bytes that a trace will take."""
    layers, kept = len(frozen.layers), round(KEPT * active)
    pairs = (active + logits) * (frozen.length + active + layers * frozen.length)
    carried = layers * bytes_per_layer(frozen, kept, kept + frozen.length)
    return of_stages(pairs, carried)


def of_stages(pairs: int, carried: int) -> int:
    """The largest of: building the graph, pruning it, splitting what is left over the heads."""
    return max(4 * pairs + 2 * BATCH_BYTES, PRUNING * pairs, 4 * pairs + min(carried, KEPT_BYTES))
