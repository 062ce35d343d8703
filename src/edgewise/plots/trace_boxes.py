"""Which clusters of a trace the attribution diagram shows, and what it says at its arrow."""

from typing import NamedTuple

from edgewise.core.text import visible
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Cluster

MOST_BOXES, INFLUENCE = 5, 0.8
"""The fewest clusters with this share of all clusters' influence, but no more than so many."""


class Box(NamedTuple):
    """A cluster to draw, or (without lines) room for the arrow from the word itself."""

    lines: list[str]
    words: list[int]
    """The positions it responds to."""
    stands: list[int]
    """Where its features are."""
    of_key: bool
    direct: float
    """The share of the output that comes straight from it."""


def choose_boxes(trace: Trace, key: int) -> list[Box]:
    """The clusters with most influence; always the key's own, or room for an arrow from the key's word."""
    own = own_cluster(trace, key)
    ranked = sorted(trace.clusters, key=lambda each: -each.influence)
    total, sum_before, chosen = sum(each.influence for each in ranked), 0.0, []
    for each in ranked:
        if sum_before < INFLUENCE * total and len(chosen) < MOST_BOXES - (own not in [*chosen, each]):
            chosen.append(each)
        sum_before += each.influence
    if own is None:
        return [*(_box(trace, each, False) for each in chosen), Box([], [key], [key], True, 0.0)]
    return [_box(trace, each, each is own) for each in chosen + [own] * (own not in chosen)]


def own_cluster(trace: Trace, key: int) -> Cluster | None:
    """The one that responds to the key's word where that word is."""
    nodes = {node.id: node for node in trace.nodes}
    for each in sorted(trace.clusters, key=lambda each: -each.influence):
        members = [nodes[name] for name in each.nodes if name in nodes]
        if any(m.position == key and (m.kind == "token" or m.origin == key) for m in members):
            return each
    return None


def began_at(trace: Trace, key: int) -> list[int]:
    """The positions that the arrow speaks of: the key's, and if the arrow begins at a cluster, all with the same text."""
    if own_cluster(trace, key) is None:
        return [key]
    return [place for place, token in enumerate(trace.tokens) if token == trace.tokens[key]]


def share_of_key(trace: Trace, key: int) -> float:
    """The share of the output that began as the embedding of the word at which the arrow begins."""
    return sum(trace.origins[place] for place in began_at(trace, key))


def _box(trace: Trace, cluster: Cluster, of_key: bool) -> Box:
    nodes = {node.id: node for node in trace.nodes}
    members = [nodes[name] for name in cluster.nodes if name in nodes]
    words = {m.position if m.kind == "token" or m.origin is None else m.origin for m in members}
    stands = sorted({m.position for m in members})
    word, lines = cluster.label, [cluster.layers]
    for token in [trace.tokens[place] for place in stands]:
        ending = f" at {token.strip()}"
        if word.endswith(ending) and cluster.label == word:
            word, lines = word.removesuffix(ending), [f"at {visible(token)}", cluster.layers]
    if not word and words:  # of a line break, nothing is left in a label
        word = trace.tokens[min(words)]
    place = trace.clusters.index(cluster)
    direct = trace.strengths[-1][place] if trace.strengths else 0.0
    return Box([word, *lines], sorted(words), stands, of_key, direct)
