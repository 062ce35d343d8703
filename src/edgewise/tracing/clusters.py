"""Features that belong together: those at the same word that respond to the same word.

A feature responds to the token from whose embedding most of its input comes, through whatever is in between. Tokens of the
same text are one word (two quotation marks are "brackets" together). The strength of one cluster on another is the share of
the other's input that comes straight from it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from edgewise.tracing.graph import Graph
from edgewise.tracing.influence import Pruned, shares_of
from edgewise.tracing.result import Cluster


def origins(graph: Graph) -> tuple[Tensor, Tensor]:  # -> [n, T], [K, T]
    """Of each feature and each logit, the share of its input that began as the embedding of each token. What began as an
    error is left out."""
    length, count = graph.frozen.length, len(graph.features)
    shares = shares_of(graph.edges)
    of_source = torch.zeros(graph.sources, length)
    of_source[:length] = torch.eye(length)
    for layer in range(len(graph.frozen.layers)):
        part = graph.features.of_layer(layer)
        of_source[length + part.start : length + part.stop] = shares[part] @ of_source
    logits = shares[count:] @ of_source
    features = of_source[graph.feature_sources]
    return _normalised(features), _normalised(logits)


def cluster(graph: Graph, pruned: Pruned, words: list[str], ids: list[str]) -> list[Cluster]:
    """Group the kept sources; `words` are the tokens' texts, `ids` the kept sources' names."""
    length, count = graph.frozen.length, len(graph.features)
    from_token, _ = origins(graph)
    groups: dict[tuple[str, str], list[int]] = {}
    for place, source in enumerate(pruned.sources.tolist()):
        feature = source - length
        if feature >= count:
            continue  # an error responds to nothing that is known
        if feature < 0:
            if pruned.influence[source] > 0:
                groups.setdefault((words[source], words[source]), []).append(place)
            continue
        own, origin = int(graph.features.position[feature]), int(from_token[feature].argmax())
        groups.setdefault((words[own], words[origin]), []).append(place)
    found = []
    for (own, origin), places in groups.items():
        features = [int(pruned.sources[i]) - length for i in places if pruned.sources[i] >= length]
        layers = [int(graph.features.layer[f]) for f in features]
        found.append(
            Cluster(
                _bare(origin) if own == origin else f"{_bare(origin)} at {_bare(own)}",
                [ids[i] for i in places],
                min(layers, default=None),
                max(layers, default=None),
                pruned.influence[pruned.sources[places]].sum().item(),
            )
        )
    return sorted(found, key=lambda each: -each.influence)


def strengths(
    clusters: Sequence[Cluster], links: Sequence[tuple[str, str, float]], outputs: Sequence[str]
) -> list[list[float]]:
    """[clusters + 1][clusters]: the share of each cluster's input, and last of the output's, that comes from each one. Links
    are (source, target, flow); what stays within a cluster is not counted."""
    place = {node: number for number, each in enumerate(clusters) for node in each.nodes}
    place |= dict.fromkeys(outputs, len(clusters))
    table = [[0.0] * len(clusters) for _ in range(len(clusters) + 1)]
    total = [0.0] * (len(clusters) + 1)
    for source, target, flow in links:
        to, by = place.get(target), place.get(source)
        if to is None or to == by:
            continue
        total[to] += flow
        if by is not None:
            table[to][by] += flow
    return [[x / t if t else 0.0 for x in row] for row, t in zip(table, total, strict=True)]


def _normalised(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True).clamp_min(1e-30)


def _bare(word: str) -> str:
    """Without spaces around it, unless there is nothing else."""
    return word.strip() or word
