"""Attribution graphs that circuit-tracer, Neuronpedia or edgewise wrote, read back: `read_graph`.

circuit-tracer named an error node `0_{layer}_{position}` until July 2026, which could be a feature's name too, and names it
`{layer}_-1_{position}` since. Both are read; a graph that has been read has the new names.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from edgewise.core.errors import EdgewiseError
from edgewise.core.schema import read_as

KINDS = {
    "token": "embedding",
    "feature": "cross layer transcoder",
    "error": "mlp reconstruction error",
    "logit": "logit",
}
"""What edgewise calls a node, and the `feature_type` of the format."""
_KIND_OF = {value: key for key, value in KINDS.items()}


@dataclass(frozen=True)
class GraphNode:
    """A node of a graph file."""

    id: str
    kind: str
    """token, feature, error or logit; another `feature_type` as the file has it"""
    layer: str
    """E for a token."""
    number: int
    """Of the feature in its layer, or of the token in the vocabulary; -1 for an error."""
    position: int
    label: str
    influence: float | None
    """Share of the graph's influence that this node and all more influential ones have; None for a logit."""
    activation: float | None


@dataclass(frozen=True)
class GraphLink:
    """An edge of a graph file: the direct effect of its source on its target."""

    source: str
    target: str
    weight: float


@dataclass(frozen=True)
class GraphFile:
    """An attribution graph in the JSON of circuit-tracer's front end and Neuronpedia."""

    model: str
    prompt: str
    tokens: list[str]
    nodes: list[GraphNode]
    links: list[GraphLink]


@dataclass(frozen=True)
class _Metadata:
    scan: str
    prompt: str
    prompt_tokens: list[str]


@dataclass(frozen=True)
class _Node:
    node_id: str
    layer: str | int
    ctx_idx: int
    feature_type: str
    clerp: str
    influence: float | None = None
    activation: float | None = None


@dataclass(frozen=True)
class _Content:
    metadata: _Metadata
    nodes: list[_Node]
    links: list[GraphLink]


def read_graph(path: str | Path) -> GraphFile:
    """Read an attribution graph, with error nodes named in either way.

    >>> graph = read_graph("runs/trace/graphs/pocket-sparse-the-opposite.json")
    >>> [node for node in graph.nodes if node.kind == "error"]
    """
    content = read_as(_Content, path, "attribution graph", writer="circuit-tracer, Neuronpedia or edgewise")
    counts = Counter(node.node_id for node in content.nodes)
    linked = {end for link in content.links for end in (link.source, link.target)}
    if missing := sorted(linked - counts.keys()):
        raise EdgewiseError(f"{path}: a link leads to {missing[0]}, which is no node; the file is damaged")
    shared = [name for name, count in counts.items() if count > 1 and name in linked]
    if shared:
        raise EdgewiseError(
            f"{path}: two nodes are called {shared[0]}, as circuit-tracer did before July 2026, and whose links they are "
            "cannot be told; write the graph again with a newer circuit-tracer"
        )
    names = {node.node_id: _name(node) for node in content.nodes}
    links = [GraphLink(names[link.source], names[link.target], link.weight) for link in content.links]
    metadata = content.metadata
    nodes = [_node(node, path) for node in content.nodes]
    return GraphFile(metadata.scan, metadata.prompt, metadata.prompt_tokens, nodes, links)


def _name(node: _Node) -> str:
    is_error = _KIND_OF.get(node.feature_type) == "error"
    return f"{node.layer}_-1_{node.ctx_idx}" if is_error else node.node_id


def _node(node: _Node, path: str | Path) -> GraphNode:
    name = _name(node)
    kind = _KIND_OF.get(node.feature_type, node.feature_type)
    try:
        number = int(name.split("_")[1])
    except (IndexError, ValueError):
        raise EdgewiseError(f"{path}: {name!r} is no id of a node: layer_feature_position") from None
    layer = str(node.layer)
    return GraphNode(name, kind, layer, number, node.ctx_idx, node.clerp, node.influence, node.activation)
