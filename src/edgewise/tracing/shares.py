"""Which heads carry an edge, and from where to where: exactly, also through several heads.

An edge is a sum over paths: straight along the residual stream (only within a position), through one head, through two, ...
A path through n heads gives each of them 1/n of its weight. Then what the heads carry, and what went straight, add up to the
edge. To compute it without walking every path: scale all attention edges by a common strength s. A path through n heads
then weighs s^n, the derivative of the edge with regard to one attention edge (l, h, q, k) at strength s collects s^(n-1) of
each path through it, and

    share(l, h, q, k) = integral from 0 to 1 of  A^h_qk * (gradient at head h's output at q) . (value at k)  ds

gives each 1/n. The integrand is a polynomial of degree L - 1 at most, so that Gauss's rule with ceil(L / 2) points is exact.
In a twin A^h = M * p is 0 almost everywhere: most heads carry exactly nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edgewise.tracing.frozen import Frozen
from edgewise.tracing.graph import Graph
from edgewise.tracing.influence import Pruned

KEPT_BYTES = 1 << 30
"""Of gradients and values at once: of all layers and strengths they would grow with L^2."""
_PIECE_BYTES = 64 << 20  # of links' shares at once


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
def head_shares(graph: Graph, pruned: Pruned) -> HeadShares:
    """Split every kept link over the heads; and the flow over attention edges."""
    layers, length = graph.frozen.layers, graph.frozen.length
    heads = layers[0].weights.shape[0]
    links = len(pruned.links)
    straight = _straight(graph, pruned)
    signed = torch.zeros(links, len(layers), heads)
    size = torch.zeros(links)  # sum of absolute values over attention edges
    cells = torch.zeros(len(layers), heads, length, length)
    carried = _Carried(graph, pruned)
    # two passes over the links: how much each carries in all, then its part of the flow
    for layer, rows, share in carried.pieces():
        signed[rows, layer] = share.sum((-2, -1))
        size[rows] += share.abs().sum((-3, -2, -1))
    flow = pruned.flow / (size + straight.abs()).clamp_min(1e-30)
    for layer, rows, share in carried.pieces():
        cells[layer] += torch.einsum("e,ehqk->hqk", flow[rows], share.abs())
    return HeadShares(signed, straight, cells)


def _straight(graph: Graph, pruned: Pruned) -> Tensor:  # -> [e]
    """What goes along the residual stream only: the edge with all heads switched off."""
    targets, sources = pruned.targets, pruned.sources
    total = torch.zeros(len(targets), len(sources))

    def visit(layer: int, at_mlp: Tensor, at_attention: Tensor) -> None:
        more = graph.written(sources, layer)
        if more is not None:
            total.add_(at_mlp.flatten(1) @ more.flatten(1).T)

    at_start = graph.frozen.pull(
        graph.ended(targets), lambda layer, _: graph.read(targets, layer), visit, strength=0.0
    )
    total += at_start.flatten(1) @ graph.started(sources).flatten(1).T
    return total[pruned.links[:, 0], pruned.links[:, 1]]


def bytes_per_layer(frozen: Frozen, targets: int, sources: int) -> int:
    """What is kept of a layer: the gradients of targets and the values of sources, at each strength."""
    heads, _, d = frozen.layers[0].values.shape
    return 4 * strengths(frozen) * (targets + sources) * heads * frozen.length * d


def strengths(frozen: Frozen) -> int:
    """Points at which the integrand, a polynomial of degree L - 1, has to be known."""
    return (len(frozen.layers) + 1) // 2


class _Carried:
    """The integral, layer by layer, for some links at a time."""

    def __init__(self, graph: Graph, pruned: Pruned):
        self.graph, self.pruned = graph, pruned
        each = bytes_per_layer(graph.frozen, len(pruned.targets), len(pruned.sources))
        layers = torch.arange(len(graph.frozen.layers))
        self.groups = [group.tolist() for group in layers.split(max(1, KEPT_BYTES // each))]
        points, weights = np.polynomial.legendre.leggauss(strengths(graph.frozen))
        self.points = [(float(point) + 1) / 2 for point in points]
        self.weights = [float(w) / 2 for w in weights]
        self.walked: list[int] = []

    def pieces(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(layer, links [e], their shares [e, heads, T, T]). Where not all layers fit, they are walked group by group."""
        for group in self.groups:
            if self.walked != group:
                self._walk(group)
            for layer in group:
                yield from ((layer, rows, share) for rows, share in self._of_layer(layer))

    def _walk(self, group: list[int]) -> None:
        """Gradients and values at each strength, of these layers."""
        frozen, pruned, graph = self.graph.frozen, self.pruned, self.graph
        self.gradients: list[dict[int, Tensor]] = []  # of each point and layer: [targets, heads, T, d]
        self.values: list[dict[int, Tensor]] = []  # [sources, heads, T, d]
        for strength in self.points:
            gradients: dict[int, Tensor] = {}
            values: dict[int, Tensor] = {}

            def back(layer: int, at_mlp: Tensor, at_attention: Tensor, into=gradients) -> None:
                if layer in group:
                    into[layer] = frozen.layers[layer].head_gradients(at_attention)

            def forth(layer: int, r: Tensor, into=values) -> None:
                if layer in group:
                    into[layer] = frozen.layers[layer].head_values(r)

            frozen.pull(
                graph.ended(pruned.targets),
                lambda layer, _: graph.read(pruned.targets, layer),
                back,
                strength,
            )
            frozen.push(
                graph.started(pruned.sources),
                lambda layer: graph.written(pruned.sources, layer),
                forth,
                strength,
            )
            self.gradients.append(gradients)
            self.values.append(values)
        self.walked = group

    def _of_layer(self, layer: int) -> Iterator[tuple[Tensor, Tensor]]:
        weights = self.graph.frozen.layers[layer].weights
        batch = max(1, _PIECE_BYTES // (4 * weights.numel()))
        for rows in torch.arange(len(self.pruned.links)).split(batch):
            t, s = self.pruned.links[rows].unbind(1)
            total = torch.zeros(len(rows), *weights.shape)
            for weight, g, v in zip(self.weights, self.gradients, self.values, strict=True):
                total += weight * (g[layer][t] @ v[layer][s].mT)
            yield rows, total * weights
