"""Which heads carry an edge, and from where to where: exactly, also through several heads.

An edge is a sum over paths: straight along the residual stream (only within a position), through one head, through two, ...
A path through n heads gives each of them 1/n of its weight. Then what the heads carry, and what went straight, add up to the
edge. To compute it without walking every path: scale all attention edges by a common strength s. A path through n heads
then weighs s^n, the derivative of the edge with regard to one attention edge (l, h, q, k) at strength s collects s^(n-1) of
each path through it, and

    share(l, h, q, k) = integral from 0 to 1 of  A^h_qk * (gradient at head h's output at q) . (value at k)  ds

gives each 1/n. The integrand is a polynomial of degree L - 1 at most, for which Gauss's rule needs L / 2 points to be exact,
and in deep models fewer to be as exact as single precision.
In a twin A^h = M * p is 0 almost everywhere: most heads carry exactly nothing.
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
from edgewise.tracing.influence import Pruned

KEPT_BYTES = 1 << 30
"""Of links' shares at once, with the gradients that they are made of."""
_PIECE_BYTES = 32 << 20  # of what is gathered for a product
_WALK = 12  # vectors [T, D] at once for each source on its way forward
_EXACT = 1e-5  # of the share of a head on a path through all layers


@dataclass(frozen=True)
class HeadShares:
    """How the kept links are carried."""

    heads: Tensor
    """Each link's weight as carried by each head, [e, L, heads]."""
    straight: Tensor
    """Along the residual stream, [e]."""
    cells: Tensor
    """The flow into the logits that passes through each attention edge, [L, heads, T, T], query by key."""


@torch.no_grad()
def head_shares(
    graph: Graph, pruned: Pruned, each: Callable[[float], object] = lambda links: None
) -> HeadShares:
    """Split every kept link over the heads; and the flow over attention edges. `each` is told of how many links' work more
    is done, for a progress bar."""
    layers, length = graph.frozen.layers, graph.frozen.length
    heads = layers[0].weights.shape[0]
    found = HeadShares(
        torch.zeros(len(pruned.links), len(layers), heads),
        _straight(graph, pruned),
        torch.zeros(len(layers), heads, length, length),
    )
    for targets, links, _ in _groups(graph, pruned):
        _split(graph, pruned, targets, links, found, each)
    return found


def _split(
    graph: Graph,
    pruned: Pruned,
    targets: slice,
    links: slice,
    found: HeadShares,
    each: Callable[[float], object],
) -> None:
    """Some targets' links."""
    pieces = _carried(graph, pruned, targets, links, each)
    size = found.straight[links].abs()
    for layer, first, rows, share in pieces:
        share.mul_(graph.frozen.layers[layer].weights[:, first:, first:])
        found.heads[links][rows, layer] = share.sum((-2, -1))
        size[rows] += share.abs_().sum((1, 2, 3))
    part = pruned.flow[links] / size.clamp_min(1e-30)
    for layer, first, rows, share in pieces:
        cells = found.cells[layer, :, first:, first:]
        cells += torch.einsum("e,ehqk->hqk", part[rows], share)


def _straight(graph: Graph, pruned: Pruned) -> Tensor:  # -> [e]
    """What goes along the residual stream only: the edge with all heads switched off."""
    sources, frozen = pruned.sources, graph.frozen
    total = torch.zeros(len(pruned.targets), len(sources))
    at_once = max(1, BATCH_BYTES // (4 * _WALK * frozen.length * frozen.width))
    for targets, found in zip(pruned.targets.split(at_once), total.split(at_once), strict=True):

        def visit(layer: int, at_mlp: Tensor, _: Tensor, __: Tensor, found: Tensor = found) -> None:
            more = graph.written(sources, layer)
            if more is not None:
                found += at_mlp.flatten(1) @ more.flatten(1).T

        def read(layer: int, _: Tensor, targets: Tensor = targets) -> Tensor | None:
            return graph.read(targets, layer)

        at_start = frozen.pull(graph.ended(targets), read, visit, strength=0.0)
        found += at_start.flatten(1) @ graph.started(sources).flatten(1).T
    return total[pruned.links[:, 0], pruned.links[:, 1]]


def bytes_of(layers: int, heads: int, length: int, width: int, targets: int, links: int) -> int:
    """What the shares of some links take, with their targets' gradients at each layer's heads: links that begin and end
    anywhere pass a third of the layers, and have a third of the pairs of positions behind their beginning."""
    return 4 * layers * length * (links * heads * length // 9 + targets * width)


def bytes_of_kept(graph: Graph, pruned: Pruned) -> int:
    """The same of those that were kept, and are held at once."""
    return max((size for _, _, size in _groups(graph, pruned)), default=0)


def _groups(graph: Graph, pruned: Pruned) -> Iterator[tuple[slice, slice, int]]:
    """Targets whose links, which are in their order, are split together; those links; and the bytes that this takes."""
    frozen, (target_of, source_of) = graph.frozen, pruned.links.unbind(1)
    vector = 4 * frozen.length * frozen.width
    after, position = graph.written_at(pruned.sources[source_of])
    layers = graph.read_at(pruned.targets[target_of]) - after
    own = 4 * layers * frozen.layers[0].weights.shape[0] * (frozen.length - position) ** 2
    first, size = 0, 0
    targets: set[int] = set()
    sources: set[int] = set()
    for place, (t, s, more) in enumerate(
        zip(*(x.tolist() for x in (target_of, source_of, own)), strict=True)
    ):
        more += vector * (len(frozen.layers) * (t not in targets) + _WALK * (s not in sources))
        if size + more > KEPT_BYTES and place > first:
            yield slice(min(targets), max(targets) + 1), slice(first, place), size
            more = int(own[place]) + vector * (len(frozen.layers) + _WALK)
            first, size, targets, sources = place, 0, set(), set()
        size += more
        targets.add(t)
        sources.add(s)
    if targets:
        yield slice(min(targets), max(targets) + 1), slice(first, len(own)), size


class _Piece(NamedTuple):
    """Links that a layer's attention can carry, and that are written at the same position."""

    layer: int
    first: int
    """That position."""
    rows: Tensor
    """int64 [m]: which of the links."""
    share: Tensor
    """[m, heads, T - first, T - first]"""


def _pieces(graph: Graph, targets: Tensor, sources: Tensor) -> list[_Piece]:  # 2 x int64 [e]
    heads, length = graph.frozen.layers[0].weights.shape[:2]
    (after, positions), last = graph.written_at(sources), graph.read_at(targets)
    pieces = []
    for layer in range(len(graph.frozen.layers)):
        between = (after < layer) & (layer <= last)
        for first in positions[between].unique().tolist():
            rows = (between & (positions == first)).nonzero()[:, 0]
            share = torch.zeros(len(rows), heads, length - first, length - first)
            pieces.append(_Piece(layer, first, rows, share))
    return pieces


def _carried(
    graph: Graph, pruned: Pruned, some: slice, links: slice, each: Callable[[float], object]
) -> list[_Piece]:
    """The integral for some targets' links, all but the factor A."""
    frozen, targets = graph.frozen, pruned.targets[some]
    t, s = pruned.links[links].unbind(1)
    needed, s = s.unique(return_inverse=True)
    sources, t = pruned.sources[needed], t - some.start
    pieces = _pieces(graph, targets[t], sources[s])
    points = gauss(len(frozen.layers))
    for point, weight in points:
        gradients: dict[int, Tensor] = {}  # of each layer: [targets, heads, T, d]

        def back(layer: int, _: Tensor, __: Tensor, at_heads: Tensor, into=gradients, weight=weight) -> None:
            into[layer] = weight * at_heads

        def forth(layer: int, r: Tensor, values: Tensor, at_heads=gradients) -> None:
            gradient = at_heads.pop(layer)
            for piece in pieces:
                if piece.layer == layer:
                    _add(piece, gradient[:, :, piece.first :], t, values[:, :, piece.first :], s)

        frozen.pull(graph.ended(targets), lambda layer, _: graph.read(targets, layer), back, point)
        frozen.push(graph.started(sources), lambda layer: graph.written(sources, layer), forth, point)
        each(len(t) / len(points))
    return pieces


def _add(piece: _Piece, gradients: Tensor, t: Tensor, values: Tensor, s: Tensor) -> None:
    """The product of each link's gradient and value, not for too many of them at once."""
    at_once = max(1, _PIECE_BYTES // (8 * gradients[0].numel()))
    for rows, share in zip(piece.rows.split(at_once), piece.share.split(at_once), strict=True):
        share += gradients[t[rows]] @ values[s[rows]].mT


@cache
def gauss(layers: int) -> list[tuple[float, float]]:
    """Points from 0 to 1 and their weights: the fewest that integrate the highest power closely enough."""
    for count in itertools.count(1):
        points, weights = np.polynomial.legendre.leggauss(count)
        points, weights = (points + 1) / 2, weights / 2
        if abs(layers * (weights @ points ** (layers - 1)) - 1) < _EXACT:
            return list(zip(points.tolist(), weights.tolist(), strict=True))
    raise AssertionError  # with L / 2 points it is exact
