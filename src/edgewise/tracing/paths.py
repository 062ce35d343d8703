"""The paths of one link: straight, through one head, through two; what goes through more is the remainder.

`shares.py` says how much each head carries of a link. This says in which company: a two-head path is a head that brings
something to a position from which another takes it on.
"""

import torch
from torch import Tensor

from edgewise.tracing.graph import Graph


@torch.no_grad()
def link_paths(graph: Graph, target: int, source: int) -> tuple[float, Tensor, Tensor, float]:
    """The weight that goes straight, through each head alone [L * heads], through each two [L * heads, L * heads] (the one
    that comes first, by the one that takes on), and through three or more."""
    frozen = graph.frozen
    heads = frozen.layers[0].weights.shape[0]
    count = len(frozen.layers) * heads
    targets, sources = torch.tensor([target]), torch.tensor([source])
    gradients: dict[int, Tensor] = {}  # of each layer, without any heads after it: [heads, T, d]
    straight = torch.zeros(())

    def back(layer: int, at_mlp: Tensor, at_attention: Tensor, at_heads: Tensor) -> None:
        nonlocal straight
        gradients[layer] = at_heads[0]
        more = graph.written(sources, layer)
        if more is not None:
            straight = straight + (at_mlp * more).sum()

    at_start = frozen.pull(graph.ended(targets), lambda layer, _: graph.read(targets, layer), back, 0.0)
    straight = straight + (at_start * graph.started(sources)).sum()
    values: dict[int, Tensor] = {}  # of each layer, without any heads before it: [heads, T, d]

    def forth(layer: int, r: Tensor, at_heads: Tensor) -> None:
        values[layer] = at_heads[0]

    frozen.push(graph.started(sources), lambda layer: graph.written(sources, layer), forth, 0.0)
    one, two = torch.zeros(count), torch.zeros(count, count)
    for number, layer in enumerate(frozen.layers):
        carried = layer.weights @ values[number]
        here = slice(number * heads, (number + 1) * heads)
        one[here] = (gradients[number] * carried).sum((-2, -1))
        brought = carried @ layer.outputs  # what each head adds to the stream, [heads, T, D]
        for later in range(number + 1, len(frozen.layers)):
            after = frozen.layers[later]
            taken_on = after.weights @ after.head_values(brought)  # [first, heads, T, d]
            there = slice(later * heads, (later + 1) * heads)
            two[here, there] = (gradients[later] * taken_on).sum((-2, -1))
    weight = graph.edges[target, source]
    return straight.item(), one, two, (weight - straight - one.sum() - two.sum()).item()


def strongest(one: Tensor, two: Tensor, heads: int, most: int) -> list[tuple[str, float]]:
    """The largest paths by name: L3H1, or L1H0 then L3H1."""
    both = torch.cat([one, two.flatten()])
    named = []
    for place in both.abs().argsort(descending=True)[:most].tolist():
        if both[place] == 0:
            break
        pair = [place] if place < len(one) else list(divmod(place - len(one), len(one)))
        named.append((" then ".join(f"L{i // heads}H{i % heads}" for i in pair), both[place].item()))
    return named
