"""The clusters of a trace that the attribution diagram shows as boxes, merged by word."""

from typing import NamedTuple

from edgewise.tracing.result import Trace
from edgewise.tracing.word_clusters import WordCluster, word_clusters

MAX_BOXES, INFLUENCE = 5, 0.9
"""The fewest clusters with this share of all clusters' influence, but no more than so many."""


class Box(NamedTuple):
    """A cluster to draw, or (without lines) room for the arrow to the key's word."""

    lines: list[str]
    words: list[int]
    """The positions it responds to."""
    positions: list[int]
    """The positions of its features."""
    of_key: bool
    direct: float
    """The share of the output that comes straight from it."""


def choose_boxes(trace: Trace, key: int) -> list[Box]:
    """The words with most influence; always the key's own, or room for an arrow to the key's word."""
    ranked = word_clusters(trace)
    own = next((cluster for cluster in ranked if key in cluster.words), None)
    total, sum_before, chosen = sum(cluster.influence for cluster in ranked), 0.0, []
    for cluster in ranked:
        if sum_before < INFLUENCE * total and len(chosen) < MAX_BOXES - (own not in [*chosen, cluster]):
            chosen.append(cluster)
        sum_before += cluster.influence
    if own is None:
        return [*(_box(cluster, False) for cluster in chosen), Box([], [key], [key], True, 0.0)]
    return [_box(cluster, cluster is own) for cluster in chosen + [own] * (own not in chosen)]


def _box(cluster: WordCluster, of_key: bool) -> Box:
    return Box([cluster.label, cluster.layers], cluster.words, cluster.positions, of_key, cluster.direct)
