"""The clusters of a trace that the attribution diagram shows as boxes, and the share that it writes at its arrow."""

from typing import NamedTuple

from edgewise.core.text import visible
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Cluster, Node

MAX_BOXES, INFLUENCE = 5, 0.8
"""The fewest clusters with this share of all clusters' influence, but no more than so many."""


class Box(NamedTuple):
    """A cluster to draw, or (without lines) room for the arrow from the key's word."""

    lines: list[str]
    words: list[int]
    """The positions it responds to."""
    positions: list[int]
    """The positions of its features."""
    of_key: bool
    direct: float
    """The share of the output that comes straight from it."""


def choose_boxes(trace: Trace, key: int) -> list[Box]:
    """The clusters with most influence; always the key's own, or room for an arrow from the key's word."""
    own = key_cluster(trace, key)
    ranked = sorted(trace.clusters, key=lambda cluster: -cluster.influence)
    total, sum_before, chosen = sum(cluster.influence for cluster in ranked), 0.0, []
    for cluster in ranked:
        if sum_before < INFLUENCE * total and len(chosen) < MAX_BOXES - (own not in [*chosen, cluster]):
            chosen.append(cluster)
        sum_before += cluster.influence
    if own is None:
        return [*(_box(trace, cluster, False) for cluster in chosen), Box([], [key], [key], True, 0.0)]
    return [_box(trace, cluster, cluster is own) for cluster in chosen + [own] * (own not in chosen)]


def key_cluster(trace: Trace, key: int) -> Cluster | None:
    """The cluster that responds to the key's word, at the key."""
    for cluster in sorted(trace.clusters, key=lambda cluster: -cluster.influence):
        members = _members(trace, cluster)
        if any(m.position == key and (m.kind == "token" or m.origin == key) for m in members):
            return cluster
    return None


def key_positions(trace: Trace, key: int) -> list[int]:
    """The positions whose share is written at the arrow: the key, and if the arrow begins at a cluster, all of its word."""
    if key_cluster(trace, key) is None:
        return [key]
    return [position for position, token in enumerate(trace.tokens) if token == trace.tokens[key]]


def key_share(trace: Trace, key: int) -> float:
    """The share of the output that is attributed to the embedding of the word at which the arrow begins."""
    return sum(trace.origins[position] for position in key_positions(trace, key))


def _members(trace: Trace, cluster: Cluster) -> list[Node]:
    nodes = {node.id: node for node in trace.nodes}
    return [nodes[name] for name in cluster.nodes if name in nodes]


def _box(trace: Trace, cluster: Cluster, of_key: bool) -> Box:
    members = _members(trace, cluster)
    words = {m.position if m.kind == "token" or m.origin is None else m.origin for m in members}
    positions = sorted({m.position for m in members})
    word, lines = cluster.label, [cluster.layers]
    for token in [trace.tokens[position] for position in positions]:
        ending = f" at {token.strip()}"
        if word.endswith(ending) and cluster.label == word:
            word, lines = word.removesuffix(ending), [f"at {visible(token)}", cluster.layers]
    if not word and words:  # a line break leaves an empty label
        word = trace.tokens[min(words)]
    direct = trace.strengths[-1][trace.clusters.index(cluster)] if trace.strengths else 0.0
    return Box([word, *lines], sorted(words), positions, of_key, direct)
