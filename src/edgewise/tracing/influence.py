"""Which nodes and edges matter for the logits, and which may be left out of the picture.

The influence of a node is the share of the logits that comes through it: each target's inputs, as absolute values, add up to
1, and a node's influence is the sum over targets of (the target's influence * the node's share in it), from the logits
(each with its probability) down. The flow of an edge is that product for the edge alone. Only features and logits have
inputs, so embeddings and errors are where the flow ends, and theirs add up to 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.tracing.graph import Graph


@dataclass(frozen=True)
class Pruned:
    """What is kept of a graph."""

    sources: Tensor
    """Kept, int64: tokens, features, errors, numbered as in the graph."""
    targets: Tensor
    """Kept, int64: features, logits, numbered as in the graph."""
    links: Tensor
    """Kept, int64 [e, 2]: places in `targets` and in `sources`."""
    influence: Tensor
    """Of every source of the graph, before pruning, [sources]."""
    flow: Tensor
    """Of each kept link, in the kept graph, [e]."""
    kept: float
    """The share of the influence of features and errors that belongs to those kept."""


def influence(shares: Tensor, logits: Tensor, graph: Graph) -> Tensor:  # [targets, sources], [K] -> [sources]
    """Of each source, from the logits down."""
    count, feature_sources = len(graph.features), graph.feature_sources
    of_target = torch.cat([torch.zeros(count), logits])
    total = logits @ shares[count:]
    for layer in reversed(range(len(graph.frozen.layers))):
        part = graph.features.of_layer(layer)
        of_target[part] = total[feature_sources][part]
        total = total + of_target[part] @ shares[part]
    return total


def shares_of(edges: Tensor) -> Tensor:  # [targets, sources]
    """Absolute values, adding up to 1 for each target."""
    size = edges.abs()
    return size / size.sum(1, keepdim=True).clamp_min(1e-30)


def prune(graph: Graph, node_share: float, edge_share: float) -> Pruned:
    """Keep the smallest set of features and errors with a share of the influence, all tokens and logits; then the smallest
    set of edges among them with a share of the flow."""
    count, length = len(graph.features), graph.frozen.length
    logits = graph.readout.weights
    whole = influence(shares_of(graph.edges), logits, graph)
    inner = whole[length:]
    keep = torch.zeros(graph.sources, dtype=torch.bool)
    keep[:length] = True
    keep[length:][smallest_set(inner, node_share)] = True
    rows = torch.cat([keep[graph.feature_sources], torch.ones(len(logits), dtype=torch.bool)])
    edges = graph.edges * rows[:, None] * keep
    shares = shares_of(edges)
    flow = _flow(shares, logits, graph)
    links = smallest_set(flow.flatten(), edge_share)
    used = torch.zeros_like(edges, dtype=torch.bool).flatten()
    used[links] = True
    used = used.view_as(edges)
    # a feature whose inputs or outputs have all gone is left hanging
    while True:
        reads = used.any(0)[graph.feature_sources] & used.any(1)[:count]
        hanging = used.clone()
        hanging[:count] &= reads[:, None]
        hanging[:, graph.feature_sources] &= reads
        if torch.equal(hanging, used):
            break
        used = hanging
    sources = (used.any(0) | (torch.arange(graph.sources) < length)).nonzero()[:, 0]
    targets = torch.cat([used.any(1)[:count], torch.ones(len(logits), dtype=torch.bool)]).nonzero()[:, 0]
    links = used[targets][:, sources].nonzero()
    kept_flow = flow[targets[links[:, 0]], sources[links[:, 1]]]
    is_inner = sources[sources >= length] - length
    kept = inner[is_inner].sum() / inner.sum().clamp_min(1e-30)
    return Pruned(sources, targets, links, whole, kept_flow, kept.item())


def _flow(shares: Tensor, logits: Tensor, graph: Graph) -> Tensor:  # -> [targets, sources]
    total = influence(shares, logits, graph)
    return torch.cat([total[graph.feature_sources], logits])[:, None] * shares


def smallest_set(values: Tensor, share: float) -> Tensor:  # [n] -> int64 [k]
    """The fewest whose values, none negative, have at least a share of the sum; largest first."""
    ordered, order = values.double().sort(descending=True)
    total = ordered.sum()
    if not total > 0:
        return order[:0]
    needed = int((ordered.cumsum(0) < share * total * (1 - 1e-6)).sum()) + 1
    return order[:needed]
