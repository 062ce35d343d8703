"""How much memory a trace takes at its peak."""

from dataclasses import dataclass

import psutil

from edgewise.core.errors import EdgewiseError
from edgewise.measure.memory import most_with
from edgewise.tracing.graph import BATCH_BYTES, Graph, Readout
from edgewise.tracing.head_shares import KEPT_BYTES, bytes_of_kept
from edgewise.tracing.influence import Pruned
from edgewise.tracing.linearised import Frozen
from edgewise.training.transcoder.transcoder import Transcoder

KEPT = 0.17
"""Share of the active features that pruning leaves, `pocket`'s on eight tokens."""
LINKS = 12
"""Links of each that is left, there. Where a transcoder misses much there are many more."""
PRUNING = 48
"""Bytes for each pair of a target and a source while the graph is pruned: four such matrices, and the sorting of one in
double precision with its order."""


@dataclass(frozen=True)
class Plan:
    """What will be computed, and what that takes."""

    what: str
    more: int
    """Bytes, beside what the process holds already."""
    instead: str
    """What to do if it does not fit."""

    def __str__(self) -> str:
        return f"{self.what}; memory about {most_with(self.more) / 2**30:.1f} GB in all"

    def check_fits(self) -> None:
        free = psutil.virtual_memory().available
        if self.more > free:
            raise EdgewiseError(
                f"{self.what}, which would take {self.more / 2**30:.1f} GB where {free / 2**30:.1f} are free; {self.instead}"
            )


def plan_graph(frozen: Frozen, transcoder: Transcoder, readout: Readout) -> Plan:
    """Of all edges, and of pruning them."""
    active = int((transcoder.encode(frozen.mlp_inputs) > 0).sum())
    pairs = (active + len(readout.tokens)) * (frozen.length + active + len(frozen.layers) * frozen.length)
    return Plan(
        f"the graph of {active:,} active features on {frozen.length} tokens",
        of_graph(pairs),
        "train the transcoder for longer or with a higher --l0, so that fewer are active, or give a shorter prompt",
    )


def plan_shares(graph: Graph, pruned: Pruned) -> Plan:
    """Of splitting what is left over the heads."""
    signed = 4 * len(pruned.links) * graph.frozen.layers[0].weights.shape[0] * len(graph.frozen.layers)
    return Plan(
        f"{len(pruned.links):,} links among {len(pruned.sources) + len(graph.readout.tokens):,} nodes, split over heads",
        signed + bytes_of_kept(graph, pruned),
        "keep fewer with --nodes and --edges",
    )


def of_graph(pairs: int) -> int:
    """The largest of: building the graph, pruning it."""
    return max(4 * pairs + 2 * BATCH_BYTES, PRUNING * pairs)


def of_stages(pairs: int, carried: int) -> int:
    """The largest of these, and of splitting what is left over the heads."""
    return max(of_graph(pairs), 4 * pairs + min(carried, KEPT_BYTES))
