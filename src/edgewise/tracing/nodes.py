"""Nodes and links of the pruned graph as data, and the metrics of a trace."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgewise.tracing.config import TraceConfig
from edgewise.tracing.graph import Graph
from edgewise.tracing.head_shares import HeadShares
from edgewise.tracing.influence import PrunedGraph, cumulative_shares
from edgewise.tracing.schema import Link, Node


def make_nodes(
    graph: Graph,
    pruned: PrunedGraph,
    token_attribution: Tensor,  # [n, T]
    words: list[str],
    tokenizer: PreTrainedTokenizerBase,
) -> list[Node]:
    """The kept sources, in their order, then the logits. `words` are the texts of the prompt's tokens."""
    length, features = graph.linear.length, graph.features
    cumulative, influences = cumulative_shares(pruned.influence).tolist(), pruned.influence.tolist()
    nodes = []
    for source in pruned.sources.tolist():
        influence, feature = influences[source], source - length
        if feature < 0:
            token = int(graph.linear.ids[source])
            nodes.append(Node(f"E_{token}_{source}", "token", -1, token, source, words[source], influence))
        elif feature < len(features):
            origin = int(token_attribution[feature].argmax())
            nodes.append(_feature_node(graph, feature, origin, words, influence))
        else:
            layer, position = divmod(feature - len(features), length)
            label = f"{words[position]}: not explained of MLP {layer}"
            nodes.append(Node(f"error_{layer}_{position}", "error", layer, -1, position, label, influence))
    nodes = [
        replace(node, cumulative_influence=cumulative[source])
        for node, source in zip(nodes, pruned.sources.tolist(), strict=True)
    ]
    return nodes + _logit_nodes(graph, tokenizer)


def _feature_node(graph: Graph, feature: int, origin: int, words: list[str], influence: float) -> Node:
    features = graph.features
    layer, index, position = (int(x[feature]) for x in (features.layer, features.index, features.position))
    return Node(
        id=f"{layer}_{index}_{position}",
        kind="feature",
        layer=layer,
        number=index,
        position=position,
        label=f"{words[position]}: L{layer} F{index}",
        influence=influence,
        value=features.activation[feature].item(),
        origin=origin,
    )


def _logit_nodes(graph: Graph, tokenizer: PreTrainedTokenizerBase) -> list[Node]:
    n_layers, last, logits = len(graph.linear.layers), graph.linear.length - 1, graph.logits
    nodes = []
    for token, p, weight in zip(logits.tokens.tolist(), logits.probability, logits.weights, strict=True):
        text = str(tokenizer.decode([token]))
        node_id = f"{n_layers + 1}_{token}_{last}"
        nodes.append(Node(node_id, "logit", n_layers, token, last, text, weight.item(), p.item()))
    return nodes


def make_links(graph: Graph, pruned: PrunedGraph, shares: HeadShares, nodes: list[Node]) -> list[Link]:
    """The kept links, in their order."""
    n_features, n_sources = len(graph.features), len(pruned.sources)
    source_ids = {s: node.id for s, node in zip(pruned.sources.tolist(), nodes, strict=False)}
    target_ids = {t: source_ids[t + graph.linear.length] for t in pruned.targets.tolist() if t < n_features}
    target_ids |= {n_features + i: node.id for i, node in enumerate(nodes[n_sources:])}
    t, s = pruned.targets[pruned.links[:, 0]], pruned.sources[pruned.links[:, 1]]
    columns = (x.tolist() for x in (t, s, graph.adjacency[t, s], pruned.flow, shares.straight))
    return [
        Link(source_ids[source], target_ids[target], weight, flow, straight)
        for target, source, weight, flow, straight in zip(*columns, strict=True)
    ]


def graph_metrics(
    graph: Graph, pruned: PrunedGraph, shares: HeadShares, config: TraceConfig
) -> dict[str, Any]:
    """Closures, counts and shares of influence of a graph and of what is kept of it."""
    n_features, length = len(graph.features), graph.linear.length
    errors = pruned.influence[length + n_features :].sum().item()
    weights = shares.heads.sum((1, 2)) + shares.straight
    t, s = pruned.targets[pruned.links[:, 0]], pruned.sources[pruned.links[:, 1]]
    share_error = (
        (weights - graph.adjacency[t, s]).abs().max() / graph.adjacency[t, s].abs().max()
        if len(t)
        else torch.zeros(())
    )
    return {
        "closure": graph.closure,
        "head_share_closure": share_error.item(),
        "features_active": n_features,
        "features_kept": int((pruned.targets < n_features).sum()),
        "edges": int((graph.adjacency != 0).sum()),
        "edges_kept": len(pruned.links),
        "node_threshold": config.node_threshold,
        "edge_threshold": config.edge_threshold,
        "influence_kept": pruned.kept,
        "influence_of_errors": errors,
        "attention_share": (shares.cells.sum() / pruned.flow.sum()).item() if len(pruned.flow) else 0.0,
    }
