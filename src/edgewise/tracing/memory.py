"""Peak memory of a trace, projected before its two large steps."""

from dataclasses import dataclass

import torch

from edgewise.core.devices import free_memory
from edgewise.core.errors import EdgewiseError
from edgewise.measure.memory import projected_peak
from edgewise.models.linearised_pass import LinearisedPass
from edgewise.tracing.graph import BATCH_BYTES, Graph
from edgewise.tracing.head_shares import link_groups
from edgewise.tracing.influence import PrunedGraph
from edgewise.tracing.target_logits import TargetLogits
from edgewise.training.transcoder.transcoder import Transcoder

PRUNING_BYTES = 48
"""Bytes for each pair of a target and a source while the graph is pruned: four such matrices, and the sorting of one in
double precision with its order."""


@dataclass(frozen=True)
class MemoryPlan:
    """What a step computes, and the memory that this takes."""

    what: str
    bytes: int
    """In addition to what the process holds already."""
    advice: str
    """What to do if it does not fit."""
    device: torch.device

    def __str__(self) -> str:
        return f"{self.what}; memory about {projected_peak(self.bytes) / 2**30:.1f} GB in all"

    def check_fits(self, memory_limit: int | None = None) -> None:
        """Refuse what takes more than `memory_limit` bytes; more than is free if not given."""
        free = free_memory(self.device) if memory_limit is None else memory_limit
        if self.bytes > free:
            raise EdgewiseError(
                f"{self.what}, which would take {self.bytes / 2**30:.1f} GB where {free / 2**30:.1f} are free; {self.advice}"
            )


def plan_graph(linear: LinearisedPass, transcoder: Transcoder, logits: TargetLogits) -> MemoryPlan:
    """Memory of the matrix of all links, and of pruning it."""
    active = int((transcoder.encode(linear.mlp_inputs) > 0).sum())
    pairs = (active + len(logits.tokens)) * (linear.length + active + len(linear.layers) * linear.length)
    return MemoryPlan(
        f"the graph of {active:,} active features on {linear.length} tokens",
        _graph_bytes(pairs),
        "train the transcoder for longer or with a higher `l0`, so that fewer are active, or give a shorter prompt",
        linear.embedding.device,
    )


def plan_shares(graph: Graph, pruned: PrunedGraph) -> MemoryPlan:
    """Memory of splitting the kept links over the heads."""
    signed = 4 * len(pruned.links) * graph.linear.n_heads * len(graph.linear.layers)
    return MemoryPlan(
        f"{len(pruned.links):,} links among {len(pruned.sources) + len(graph.logits.tokens):,} nodes, split over heads",
        signed + max((group.bytes for group in link_groups(graph, pruned)), default=0),
        "keep fewer with lower values of `node_threshold` and `edge_threshold`",
        graph.linear.embedding.device,
    )


def _graph_bytes(pairs: int) -> int:
    """Bytes of building the graph or of pruning it, whichever takes more, for so many pairs of a target and a source."""
    return max(4 * pairs + 2 * BATCH_BYTES, PRUNING_BYTES * pairs)
