"""Influence of nodes and links on the logits, and pruning by it.

The influence of a node is the share of the logits that comes through it: the absolute weights of the links into each target
are normalised to add up to 1, and a node's influence is the sum over targets of (the target's influence * the node's share
of its input), from the logits (each weighted by its probability) down. The flow of a link is that product for the link
alone. Only features and logits have inputs, so the influences of embeddings and errors add up to 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.tracing.graph import Graph


@dataclass(frozen=True)
class PrunedGraph:
    """What is kept of a graph."""

    sources: Tensor
    """Kept, int64: tokens, features, errors, numbered as in the graph."""
    targets: Tensor
    """Kept, int64: features, logits, numbered as in the graph."""
    links: Tensor
    """Kept, int64 [e, 2]: indices into `targets` and into `sources`."""
    influence: Tensor
    """Of every source of the graph, before pruning, [sources]."""
    flow: Tensor
    """Of each kept link, in the kept graph, [e]."""
    kept: float
    """The share of the influence of features and errors that belongs to those kept."""

    def ends(self, link: int) -> tuple[int, int]:
        """Target and source of a kept link, numbered as in the graph."""
        target, source = self.links[link].tolist()
        return int(self.targets[target]), int(self.sources[source])


def prune(graph: Graph, node_threshold: float, edge_threshold: float) -> PrunedGraph:
    """Keep the smallest set of features and errors with a share of the influence, all tokens and logits; then the smallest
    set of links among them with a share of the flow."""
    count, length, n_logits = len(graph.features), graph.linear.length, len(graph.logits.tokens)
    all_influence = influence(input_shares(graph.adjacency), graph)
    inner = all_influence[length:]
    keep = torch.zeros(graph.n_sources, dtype=torch.bool)
    keep[:length] = True
    keep[length:][smallest_set(inner, node_threshold)] = True
    keep_target = torch.cat([keep[graph.feature_sources], torch.ones(n_logits, dtype=torch.bool)])
    flow = _flow(graph.adjacency * keep_target[:, None] * keep, graph)
    used = torch.zeros(flow.numel(), dtype=torch.bool)
    used[smallest_set(flow.flatten(), edge_threshold)] = True
    used = _drop_dead_ends(used.view_as(flow), graph)
    sources = (used.any(0) | (torch.arange(graph.n_sources) < length)).nonzero()[:, 0]
    targets = torch.cat([used.any(1)[:count], torch.ones(n_logits, dtype=torch.bool)]).nonzero()[:, 0]
    links = used[targets][:, sources].nonzero()
    kept_inner = inner[sources[sources >= length] - length]
    return PrunedGraph(
        sources,
        targets,
        links,
        all_influence,
        flow[targets[links[:, 0]], sources[links[:, 1]]],
        (kept_inner.sum() / inner.sum().clamp_min(1e-30)).item(),
    )


def input_shares(adjacency: Tensor) -> Tensor:  # [targets, sources]
    """Absolute weights, normalised to add up to 1 for each target."""
    size = adjacency.abs()
    return size / size.sum(1, keepdim=True).clamp_min(1e-30)


def influence(shares: Tensor, graph: Graph) -> Tensor:  # [targets, sources] -> [sources]
    """Influence of each source on the logits, layer by layer from the logits down."""
    count, feature_sources, logits = len(graph.features), graph.feature_sources, graph.logits.weights
    of_target = torch.cat([torch.zeros(count), logits])
    total = logits @ shares[count:]
    for layer in reversed(range(len(graph.linear.layers))):
        of_layer = graph.features.of_layer(layer)
        of_target[of_layer] = total[feature_sources][of_layer]
        total = total + of_target[of_layer] @ shares[of_layer]
    return total


def _flow(adjacency: Tensor, graph: Graph) -> Tensor:  # [targets, sources] -> [targets, sources]
    """Flow of each link: the target's influence times the source's share of its input."""
    shares = input_shares(adjacency)
    total = influence(shares, graph)
    return torch.cat([total[graph.feature_sources], graph.logits.weights])[:, None] * shares


def _drop_dead_ends(used: Tensor, graph: Graph) -> Tensor:  # bool [targets, sources]
    """Drop features without inputs or without outputs, and their links, until none is left."""
    count = len(graph.features)
    while True:
        connected = used.any(0)[graph.feature_sources] & used.any(1)[:count]
        remaining = used.clone()
        remaining[:count] &= connected[:, None]
        remaining[:, graph.feature_sources] &= connected
        if torch.equal(remaining, used):
            return used
        used = remaining


def cumulative_shares(values: Tensor) -> Tensor:  # [n] -> [n]
    """The share of the sum that each non-negative value has together with all larger ones."""
    # on the CPU: MPS has no float64
    ordered, order = values.cpu().double().sort(descending=True, stable=True)
    shares = torch.empty_like(ordered)
    shares[order] = ordered.cumsum(0) / ordered.sum().clamp_min(1e-30)
    return shares.clamp(max=1.0)


def smallest_set(values: Tensor, share: float) -> Tensor:  # [n] -> int64 [k]
    """Indices of the fewest non-negative values with at least a share of the sum, largest first."""
    ordered, order = values.cpu().double().sort(descending=True)  # on the CPU: MPS has no float64
    total = ordered.sum()
    needed = int((ordered.cumsum(0) < share * total * (1 - 1e-6)).sum()) + 1 if total > 0 else 0
    return order[:needed].to(values.device)
