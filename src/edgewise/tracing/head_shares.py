"""Head shares: how much of each link each head carries, exactly, also on paths through several heads.

A link is a sum over paths: along the residual stream (only within a position), through one head, through two, ... A path
through n heads gives each of them 1/n of its weight. Then what the heads carry, and what bypasses them all, add up to the
link. To compute it without enumerating paths: scale all heads by a common strength s. A path through n heads then weighs
s^n, the derivative of the link with regard to one attention edge (l, h, q, k) at strength s collects s^(n-1) of each path
through it, and

    share(l, h, q, k) = integral from 0 to 1 of  A^h_qk * (gradient at head h's output at q) . (value at k)  ds

gives each 1/n (as integrated gradients do). The integrand is a polynomial of degree L - 1 at most, for which Gauss-Legendre
quadrature needs L / 2 points to be exact, and in deep models fewer to be as exact as single precision.
In a sparse twin A^h = M * p is 0 almost everywhere: most heads carry exactly nothing.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgewise.tracing.graph import BATCH_BYTES, Graph
from edgewise.tracing.influence import PrunedGraph

KEPT_BYTES = 1 << 30
"""Of links' shares at once, with the gradients that they are made of."""
_PRODUCT_BYTES = 32 << 20  # of what is gathered for a product
_FORWARD_VECTORS = 12  # vectors [T, D] at once for each source that is pushed forward
_QUADRATURE_ERROR = 1e-5  # of the share of a head on a path through all layers

Progress = Callable[[float], object]
"""Called with the number of links finished."""


@dataclass(frozen=True)
class HeadShares:
    """How the kept links are carried."""

    heads: Tensor
    """Each link's weight as carried by each head, [e, L, heads]."""
    straight: Tensor
    """Along the residual stream, past all heads, [e]."""
    cells: Tensor
    """The flow into the logits that passes through each attention edge, [L, heads, T, T], query by key."""


@torch.no_grad()
def head_shares(
    graph: Graph,
    pruned: PrunedGraph,
    progress: Progress = lambda links: None,
    kept_bytes: int = KEPT_BYTES,
) -> HeadShares:
    """Split every kept link over the heads, and the flow over attention edges."""
    n_layers, heads, length = len(graph.linear.layers), graph.linear.n_heads, graph.linear.length
    shares = HeadShares(
        torch.zeros(len(pruned.links), n_layers, heads),
        _straight(graph, pruned),
        torch.zeros(n_layers, heads, length, length),
    )
    for group in link_groups(graph, pruned, kept_bytes):
        _split(graph, pruned, group, shares, progress)
    return shares


# ------------------------------------------------------------------------------------------------- groups that fit in memory


class LinkGroup(NamedTuple):
    """Consecutive links that are split together."""

    targets: slice
    """Their targets, among the kept ones."""
    links: slice
    bytes: int
    """What splitting them takes."""


def link_groups(graph: Graph, pruned: PrunedGraph, kept_bytes: int = KEPT_BYTES) -> Iterator[LinkGroup]:
    """Groups of links, which are sorted by target, that take at most `kept_bytes` each; a link that takes more is alone."""
    linear, (target_of, source_of) = graph.linear, pruned.links.unbind(1)
    vector = 4 * linear.length * linear.width
    written_after, position = graph.source_location(pruned.sources[source_of])
    layers = graph.target_layer(pruned.targets[target_of]) - written_after
    own = 4 * layers * linear.n_heads * (linear.length - position) ** 2
    first, size = 0, 0
    targets: set[int] = set()
    sources: set[int] = set()
    ends = zip(target_of.tolist(), source_of.tolist(), own.tolist(), strict=True)
    for link, (target, source, more) in enumerate(ends):
        more += vector * (
            len(linear.layers) * (target not in targets) + _FORWARD_VECTORS * (source not in sources)
        )
        if size + more > kept_bytes and link > first:
            yield LinkGroup(slice(min(targets), max(targets) + 1), slice(first, link), size)
            more = int(own[link]) + vector * (len(linear.layers) + _FORWARD_VECTORS)
            first, size, targets, sources = link, 0, set(), set()
        size += more
        targets.add(target)
        sources.add(source)
    if targets:
        yield LinkGroup(slice(min(targets), max(targets) + 1), slice(first, len(own)), size)


# ------------------------------------------------------------------------------------------------------------ the integral


class _ShareBlock(NamedTuple):
    """Shares, in one layer, of the m links that are written at the same position."""

    layer: int
    first: int
    """That position: keys and queries before it carry nothing."""
    links: Tensor
    """int64 [m]: which of the group's links."""
    shares: Tensor
    """[m, heads, T - first, T - first]"""


def _split(graph: Graph, pruned: PrunedGraph, group: LinkGroup, into: HeadShares, progress: Progress) -> None:
    """Split one group of links, and add its flow to that through attention edges."""
    blocks = _integrate(graph, pruned, group, progress)
    size = into.straight[group.links].abs()
    for layer, first, links, shares in blocks:
        shares.mul_(graph.linear.layers[layer].weights[:, first:, first:])
        into.heads[group.links][links, layer] = shares.sum((-2, -1))
        size[links] += shares.abs_().sum((1, 2, 3))
    flow = pruned.flow[group.links] / size.clamp_min(1e-30)
    for layer, first, links, shares in blocks:
        cells = into.cells[layer, :, first:, first:]
        cells += torch.einsum("e,ehqk->hqk", flow[links], shares)


def _integrate(graph: Graph, pruned: PrunedGraph, group: LinkGroup, progress: Progress) -> list[_ShareBlock]:
    """The integral for a group of links, all but the factor A."""
    linear, targets = graph.linear, pruned.targets[group.targets]
    t, s = pruned.links[group.links].unbind(1)
    needed, s = s.unique(return_inverse=True)
    sources, t = pruned.sources[needed], t - group.targets.start
    blocks = _empty_blocks(graph, targets[t], sources[s])
    points = gauss(len(linear.layers))
    for point, weight in points:
        gradients: dict[int, Tensor] = {}  # of each layer: [targets, heads, T, d]

        def keep(layer: int, _: Tensor, __: Tensor, at_heads: Tensor, into=gradients, weight=weight) -> None:
            into[layer] = weight * at_heads

        def add(layer: int, r: Tensor, values: Tensor, head_gradients=gradients) -> None:
            gradient = head_gradients.pop(layer)
            for block in blocks:
                if block.layer == layer:
                    _add_products(block, gradient[:, :, block.first :], t, values[:, :, block.first :], s)

        linear.pull(
            graph.final_gradient(targets), lambda layer, _: graph.target_gradient(targets, layer), keep, point
        )
        linear.push(
            graph.source_embedding(sources), lambda layer: graph.source_write(sources, layer), add, point
        )
        progress(len(t) / len(points))
    return blocks


def _empty_blocks(graph: Graph, targets: Tensor, sources: Tensor) -> list[_ShareBlock]:  # 2 x int64 [e]
    heads, length = graph.linear.n_heads, graph.linear.length
    (written_after, positions), last = graph.source_location(sources), graph.target_layer(targets)
    blocks = []
    for layer in range(len(graph.linear.layers)):
        between = (written_after < layer) & (layer <= last)
        for first in positions[between].unique().tolist():
            links = (between & (positions == first)).nonzero()[:, 0]
            shares = torch.zeros(len(links), heads, length - first, length - first)
            blocks.append(_ShareBlock(layer, first, links, shares))
    return blocks


def _add_products(block: _ShareBlock, gradients: Tensor, t: Tensor, values: Tensor, s: Tensor) -> None:
    """Add gradient . value for each query and key of each link, in batches of links."""
    at_once = max(1, _PRODUCT_BYTES // (8 * gradients[0].numel()))
    for links, shares in zip(block.links.split(at_once), block.shares.split(at_once), strict=True):
        shares += gradients[t[links]] @ values[s[links]].mT


def _straight(graph: Graph, pruned: PrunedGraph) -> Tensor:  # -> [e]
    """What goes along the residual stream only: the links with all heads switched off."""
    sources, linear = pruned.sources, graph.linear
    total = torch.zeros(len(pruned.targets), len(sources))
    at_once = max(1, BATCH_BYTES // (4 * _FORWARD_VECTORS * linear.length * linear.width))
    for targets, weights in zip(pruned.targets.split(at_once), total.split(at_once), strict=True):

        def visit(layer: int, at_mlp: Tensor, _: Tensor, __: Tensor, weights: Tensor = weights) -> None:
            write = graph.source_write(sources, layer)
            if write is not None:
                weights += at_mlp.flatten(1) @ write.flatten(1).T

        def gradient(layer: int, _: Tensor, targets: Tensor = targets) -> Tensor | None:
            return graph.target_gradient(targets, layer)

        at_embedding = linear.pull(graph.final_gradient(targets), gradient, visit, strength=0.0)
        weights += at_embedding.flatten(1) @ graph.source_embedding(sources).flatten(1).T
    return total[pruned.links[:, 0], pruned.links[:, 1]]


@cache
def gauss(layers: int) -> list[tuple[float, float]]:
    """Points and weights of Gauss-Legendre quadrature on [0, 1]: the fewest that integrate s^(layers - 1) closely enough."""
    for count in itertools.count(1):
        points, weights = np.polynomial.legendre.leggauss(count)
        points, weights = (points + 1) / 2, weights / 2
        if abs(layers * (weights @ points ** (layers - 1)) - 1) < _QUADRATURE_ERROR:
            return list(zip(points.tolist(), weights.tolist(), strict=True))
    raise AssertionError  # with L / 2 points it is exact
