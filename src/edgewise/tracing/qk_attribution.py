"""QK attribution: why a head attends where it does, its attention score split over pairs of sources.

The score of a head is bilinear in what its query and its key read. With the norm linearised, both are sums over sources, so

    s(q, k) = scale * sum_ij  (R_q W_Q N r_i(q) + ...) . (R_k W_K N r_j(k) + ...)

where r_i(p) is source i's contribution to the residual stream at position p, and R the rotary embedding's rotation of
queries and keys (elsewhere the identity). All that is no kept source (biases, pruned sources) is one more term on either
side, and the terms add up to the score.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.tap import tap
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_output
from edgewise.tracing.graph import Graph
from edgewise.tracing.influence import PrunedGraph
from edgewise.tracing.schema import Node, QKAttribution

MAX_EDGES = 12
"""Attention edges whose scores are attributed: those with most flow."""
_MAX_PAIRS = 8  # of an edge, listed
_TOLERANCE = 1e-3

AttentionEdge = tuple[int, int, int, int]
"""Layer, head, query, key."""


def qk_attributions(
    model: PreTrainedModel, graph: Graph, pruned: PrunedGraph, cells: Tensor, nodes: list[Node]
) -> list[QKAttribution]:  # cells: [L, heads, T, T]
    """Attribute the scores of the attention edges with most flow (`cells`) to pairs of kept nodes."""
    flow = cells.flatten()
    order = flow.argsort(descending=True)[:MAX_EDGES]
    order = order[flow[order] > 0]
    edges: list[AttentionEdge] = [
        tuple(int(i) for i in torch.unravel_index(index, cells.shape))  # pyright: ignore
        for index in order
    ]
    names = [*(node.id for node in nodes[: len(pruned.sources)]), "rest"]
    return [
        _largest_pairs(scores, names, graph)
        for scores in attribute_scores(model, graph, pruned.sources, edges)
    ]


@dataclass(frozen=True)
class PairScores:
    """One attention edge's score, split over all pairs of sources."""

    edge: AttentionEdge
    score: float
    pairs: Tensor
    """Contributions of pairs, [m + 1, m + 1]: the query's source by the key's. The last of each is all the rest."""


def _largest_pairs(scores: PairScores, names: list[str], graph: Graph) -> QKAttribution:
    sizes = scores.pairs.abs()
    sizes[-1, -1] = -1  # everything else by everything else says nothing: it stays in the rest
    largest = sizes.flatten().argsort(descending=True)[: min(_MAX_PAIRS, sizes.numel() - 1)]
    q, k = torch.unravel_index(largest, scores.pairs.shape)
    pairs = [
        (names[i], names[j], scores.pairs[i, j].item()) for i, j in zip(q.tolist(), k.tolist(), strict=True)
    ]
    layer, head, query, key = scores.edge
    weight = graph.linear.layers[layer].weights[head, query, key].item()
    rest = scores.score - sum(value for _, _, value in pairs)
    return QKAttribution(layer, head, query, key, weight, scores.score, rest, pairs)


@torch.no_grad()
def attribute_scores(
    model: PreTrainedModel, graph: Graph, sources: Tensor, edges: list[AttentionEdge]
) -> list[PairScores]:  # int64 [m]
    """Split the scores of attention edges over pairs of some sources."""
    linear = graph.linear
    residuals: dict[int, Tensor] = {}  # what each source contributes to a layer's input, [m, T, D]

    def visit(layer: int, r: Tensor, head_values: Tensor) -> None:
        if any(layer == edge[0] for edge in edges):
            residuals[layer] = r

    linear.push(graph.source_embedding(sources), lambda layer: graph.source_write(sources, layer), visit)
    projections = _projections(model, graph)
    split = []
    for layer, head, query, key in edges:
        normed = linear.layers[layer].norm_1.push(residuals[layer])  # [m, T, D]
        queries, keys = projections[layer]
        q, k = queries.split(head, query, normed[:, query]), keys.split(head, key, normed[:, key])
        score = linear.scores[layer][head, query, key].item()
        split.append(PairScores((layer, head, query, key), score, _scale(graph, layer) * q @ k.T))
    return split


@dataclass(frozen=True)
class _Projection:
    """How a layer's queries or keys are made from its normed input."""

    weight: Tensor  # [heads, D, d]
    rotation: Tensor  # R, [T, d, d]
    recorded: Tensor  # after rotation, [heads, T, d]

    def split(self, head: int, position: int, normed: Tensor) -> Tensor:  # [m, D] -> [m + 1, d]
        """Each source's contribution to the query or key, and the rest."""
        contributions = normed @ self.weight[head] @ self.rotation[position]
        return torch.cat([contributions, (self.recorded[head, position] - contributions.sum(0))[None]])


def _projections(model: PreTrainedModel, graph: Graph) -> list[tuple[_Projection, _Projection]]:
    """Of each layer's queries and keys; refused if they are not what the layer computes."""
    linear = graph.linear
    layer_rotations = rotations(model, linear.ids)
    projections = []
    for number, layer in enumerate(architecture_of(model).layers):
        norm = linear.layers[number].norm_1
        x = norm.push(linear.residuals[number]) + norm.shift
        of_layer = []
        recorded = (linear.queries[number], linear.keys[number])
        for kind, actual, rotation in zip("qk", recorded, layer_rotations[number], strict=True):
            weight, bias = layer.weights(kind)
            projected = x @ weight if bias is None else x @ weight + bias
            computed = torch.einsum("htd,tde->hte", projected, rotation)
            if not (computed - actual).abs().max() < _TOLERANCE * actual.abs().max():
                raise EdgewiseError(
                    f"{type(model).__name__} does more to its queries and keys than project and rotate them, so attention "
                    "scores cannot be attributed"
                )
            group = layer.heads // len(weight)
            of_layer.append(
                _Projection(weight.repeat_interleave(group, 0), rotation, actual.repeat_interleave(group, 0))
            )
        projections.append(tuple(of_layer))
    return projections


def rotations(model: PreTrainedModel, ids: Tensor) -> list[tuple[Tensor, Tensor]]:  # [T, d, d] twice a layer
    """R of each layer for queries and for keys, by passing each unit vector through."""
    layers = architecture_of(model).layers
    d = layers[0].columns["q"][1].shape[1]
    units = torch.eye(d)[:, None, None]  # [d, 1, 1, d]
    with ExitStack() as stack:
        for layer in layers:
            for number, projection in enumerate(layer.projections):

                def send_units(y: Tensor, number=number, layer=layer) -> Tensor:
                    y = y.clone()
                    for kind in "qk":
                        projection_number, columns = layer.columns[kind]
                        if projection_number == number:
                            y[..., columns] = units.to(y).expand(-1, y.shape[1], len(columns), -1)
                    return y

                stack.enter_context(replace_output(projection, send_units))
        taps = stack.enter_context(tap(model, read=["queries", "keys"]))
        model(input_ids=ids[None].expand(d, -1), use_cache=False)
    return [
        tuple(taps.last[what][i][:, 0].transpose(0, 1) for what in ("queries", "keys"))  # pyright: ignore
        for i in range(len(layers))
    ]


def _scale(graph: Graph, layer: int) -> float:
    """The scores' factor, from recorded queries, keys and scores by least squares."""
    q, k, s = graph.linear.queries[layer], graph.linear.keys[layer], graph.linear.scores[layer]
    products = q @ k.repeat_interleave(len(q) // len(k), 0).mT
    causal = torch.ones_like(products[0]).tril().bool()
    return ((products * s)[:, causal].sum() / (products * products)[:, causal].sum()).item()
