"""Clusters of features at the same word that respond to the same word.

A feature responds to the token to whose embedding most of its input is attributed, through whatever is in between. Tokens of
the same text are one word (all quotation marks of a prompt are one). The strength of one cluster on another is the share of
the other's input that comes straight from it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from edgewise.tracing.graph import Graph
from edgewise.tracing.influence import PrunedGraph, input_shares
from edgewise.tracing.schema import Cluster, Link


def attribute_to_tokens(graph: Graph) -> tuple[Tensor, Tensor]:  # -> [n, T], [K, T]
    """The share of each feature's and each logit's input that is attributed to each token embedding. What is attributed to
    errors is left out."""
    length, count = graph.linear.length, len(graph.features)
    shares = input_shares(graph.adjacency)
    of_source = torch.zeros(graph.n_sources, length)
    of_source[:length] = torch.eye(length)
    for layer in range(len(graph.linear.layers)):
        of_layer = graph.features.of_layer(layer)
        of_source[length + of_layer.start : length + of_layer.stop] = shares[of_layer] @ of_source
    logits = shares[count:] @ of_source
    features = of_source[graph.feature_sources]
    return _normalised(features), _normalised(logits)


def make_clusters(
    graph: Graph, pruned: PrunedGraph, token_attribution: Tensor, words: list[str], ids: list[str]
) -> list[Cluster]:  # [n, T]
    """Group the kept sources, most influential cluster first; `words` are the tokens' texts, `ids` the sources' names."""
    length, count = graph.linear.length, len(graph.features)
    groups: dict[tuple[str, str], list[int]] = {}  # (word where it is, word it responds to): kept sources
    for index, source in enumerate(pruned.sources.tolist()):
        feature = source - length
        if feature >= count:
            continue  # an error cannot be attributed
        if feature < 0:
            if pruned.influence[source] > 0:
                groups.setdefault((words[source], words[source]), []).append(index)
            continue
        position, origin = int(graph.features.position[feature]), int(token_attribution[feature].argmax())
        groups.setdefault((words[position], words[origin]), []).append(index)
    clusters = []
    for (own, origin), members in groups.items():
        features = [int(pruned.sources[i]) - length for i in members if pruned.sources[i] >= length]
        layers = [int(graph.features.layer[f]) for f in features]
        clusters.append(
            Cluster(
                _strip(origin) if own == origin else f"{_strip(origin)} at {_strip(own)}",
                [ids[i] for i in members],
                min(layers, default=None),
                max(layers, default=None),
                pruned.influence[pruned.sources[members]].sum().item(),
            )
        )
    return sorted(clusters, key=lambda cluster: -cluster.influence)


def cluster_strengths(
    clusters: Sequence[Cluster], links: Sequence[Link], logits: Sequence[str]
) -> list[list[float]]:
    """[clusters + 1][clusters]: the share of each cluster's input, and last of the logits', that comes from each cluster.
    Links within a cluster are not counted."""
    cluster_of = {node: number for number, cluster in enumerate(clusters) for node in cluster.nodes}
    cluster_of |= dict.fromkeys(logits, len(clusters))
    flows = [[0.0] * len(clusters) for _ in range(len(clusters) + 1)]
    total = [0.0] * (len(clusters) + 1)
    for link in links:
        target, source = cluster_of.get(link.target), cluster_of.get(link.source)
        if target is None or target == source:
            continue
        total[target] += link.flow
        if source is not None:
            flows[target][source] += link.flow
    return [[x / t if t else 0.0 for x in row] for row, t in zip(flows, total, strict=True)]


def _normalised(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True).clamp_min(1e-30)


def _strip(word: str) -> str:
    """Without spaces around it, unless there is nothing else."""
    return word.strip() or word
