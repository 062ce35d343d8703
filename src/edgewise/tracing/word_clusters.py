"""Clusters merged by the word that they respond to, as the attribution diagram shows them.

A trace's clusters tell apart where a feature is: "large" at "large" and "large" at the last quotation mark. A picture of a
prompt wants each word once, with all layers in which features respond to it; and all quotation marks and brackets as one.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.tracing.schema import Cluster, Node

if TYPE_CHECKING:
    from edgewise.tracing.result import Trace

BRACKETS = "brackets"
_ASCII, _CATEGORIES = {*"\"'`<>"}, {"Ps", "Pe", "Pi", "Pf"}  # Unicode's of brackets and quotation marks


@dataclass(frozen=True)
class WordCluster:
    """All clusters of a trace that respond to one word."""

    label: str
    """The word, or brackets."""
    layers: str
    words: list[int]
    """The positions it responds to."""
    positions: list[int]
    """The positions of its features."""
    influence: float
    direct: float
    """The share of the output that comes straight from it."""


def word_clusters(trace: "Trace") -> list[WordCluster]:
    """The clusters of a trace, merged by word, most influential first."""
    nodes = {node.id: node for node in trace.nodes}
    to_output = trace.strengths[-1] if trace.strengths else [0.0] * len(trace.clusters)
    groups: dict[str, list[int]] = {}
    for number, cluster in enumerate(trace.clusters):
        groups.setdefault(_word(trace, cluster, nodes), []).append(number)
    merged = []
    for word, numbers in groups.items():
        clusters = [trace.clusters[number] for number in numbers]
        members = [nodes[name] for cluster in clusters for name in cluster.nodes if name in nodes]
        merged.append(
            WordCluster(
                word,
                _layers(clusters),
                sorted({_origin(member) for member in members}),
                sorted({member.position for member in members}),
                sum(cluster.influence for cluster in clusters),
                sum(to_output[number] for number in numbers),
            )
        )
    return sorted(merged, key=lambda cluster: -cluster.influence)


def is_bracket(token: str) -> bool:
    """Whether a token is nothing but quotation marks and brackets."""
    text = token.strip()
    return bool(text) and all(c in _ASCII or unicodedata.category(c) in _CATEGORIES for c in text)


def _origin(node: Node) -> int:
    return node.position if node.kind == "token" or node.origin is None else node.origin


def _word(trace: "Trace", cluster: Cluster, nodes: dict[str, Node]) -> str:
    """What a cluster responds to; its label if none of its nodes is known."""
    members = [nodes[name] for name in cluster.nodes if name in nodes]
    if not members:
        return cluster.label
    token = trace.tokens[min(_origin(member) for member in members)]
    return BRACKETS if is_bracket(token) else token.strip() or token


def _layers(clusters: Iterable[Cluster]) -> str:
    first = [cluster.first_layer for cluster in clusters if cluster.first_layer is not None]
    last = [cluster.last_layer for cluster in clusters if cluster.last_layer is not None]
    return Cluster("", [], min(first, default=None), max(last, default=None), 0.0).layers
