"""Paths of a link: along the residual stream, through one head, through two; what goes through more is the remainder.

`head_shares.py` says how much of a link each head carries; this says through which heads together: on a two-head path, the
first head writes to a position that the second one reads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.tracing.graph import Graph
from edgewise.tracing.influence import PrunedGraph
from edgewise.tracing.schema import Link, LinkPaths, Node

MAX_LINKS = 20
"""Links whose paths are computed: those between positions with most flow."""
_MAX_PATHS = 8  # of a link


def strongest_link_paths(
    graph: Graph, pruned: PrunedGraph, links: list[Link], nodes: list[Node]
) -> list[LinkPaths]:
    """The largest paths of the links between positions with most flow."""
    position = {node.id: node.position for node in nodes}
    between = [i for i, link in enumerate(links) if position[link.source] != position[link.target]]
    strongest = sorted(between, key=lambda i: -links[i].flow)[:MAX_LINKS]
    link_paths = []
    for link in strongest:
        weights = path_weights(graph, *pruned.ends(link))
        named = largest_paths(weights.one, weights.two, graph.linear.n_heads, _MAX_PATHS)
        link_paths.append(LinkPaths(link, named, weights.longer))
    return link_paths


class PathWeights(NamedTuple):
    """A link's weight by the number of heads on the way."""

    straight: float
    one: Tensor
    """[L * heads]"""
    two: Tensor
    """[L * heads, L * heads]: the first head by the second."""
    longer: float
    """Through three heads or more."""


@torch.no_grad()
def path_weights(graph: Graph, target: int, source: int) -> PathWeights:
    """Split a link by paths; target and source numbered as in the graph."""
    linear = graph.linear
    straight, gradients = _direct_gradients(graph, target, source)
    values = _direct_values(graph, source)
    heads = linear.n_heads
    count = len(linear.layers) * heads
    one, two = torch.zeros(count), torch.zeros(count, count)
    for number, layer in enumerate(linear.layers):
        outputs = layer.weights @ values[number]
        first = slice(number * heads, (number + 1) * heads)
        one[first] = (gradients[number] * outputs).sum((-2, -1))
        writes = layer.head_writes(outputs)  # what each head adds to the residual stream, [heads, T, D]
        for later_number in range(number + 1, len(linear.layers)):
            later = linear.layers[later_number]
            later_outputs = later.weights @ later.head_values(writes)  # [first, heads, T, d]
            second = slice(later_number * heads, (later_number + 1) * heads)
            two[first, second] = (gradients[later_number] * later_outputs).sum((-2, -1))
    longer = graph.adjacency[target, source] - straight - one.sum() - two.sum()
    return PathWeights(straight.item(), one, two, longer.item())


def _direct_gradients(graph: Graph, target: int, source: int) -> tuple[Tensor, dict[int, Tensor]]:
    """The straight path's weight, and the target's gradient at each layer's heads, [heads, T, d], without any heads after
    them."""
    targets, sources = torch.tensor([target]), torch.tensor([source])
    gradients: dict[int, Tensor] = {}
    straight = torch.zeros(())

    def visit(layer: int, at_mlp: Tensor, at_attention: Tensor, at_heads: Tensor) -> None:
        nonlocal straight
        gradients[layer] = at_heads[0]
        write = graph.source_write(sources, layer)
        if write is not None:
            straight = straight + (at_mlp * write).sum()

    at_embedding = graph.linear.pull(
        graph.final_gradient(targets), lambda layer, _: graph.target_gradient(targets, layer), visit, 0.0
    )
    return straight + (at_embedding * graph.source_embedding(sources)).sum(), gradients


def _direct_values(graph: Graph, source: int) -> dict[int, Tensor]:
    """The source's value vectors in each layer, [heads, T, d], without any heads before them."""
    sources = torch.tensor([source])
    values: dict[int, Tensor] = {}

    def visit(layer: int, r: Tensor, head_values: Tensor) -> None:
        values[layer] = head_values[0]

    graph.linear.push(
        graph.source_embedding(sources), lambda layer: graph.source_write(sources, layer), visit, 0.0
    )
    return values


def largest_paths(one: Tensor, two: Tensor, heads: int, count: int) -> list[tuple[str, float]]:
    """The largest paths by name: L3H1, or L1H0 then L3H1."""
    weights = torch.cat([one, two.flatten()])
    named = []
    for index in weights.abs().argsort(descending=True)[:count].tolist():
        if weights[index] == 0:
            break
        path = [index] if index < len(one) else list(divmod(index - len(one), len(one)))
        name = " then ".join(f"L{i // heads}H{i % heads}" for i in path)
        named.append((name, weights[index].item()))
    return named
