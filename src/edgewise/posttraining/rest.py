"""The value of attending to nothing, where it starts: the mean of the values that closed edges would have brought. What thin
attention to many keys brings is mostly that, so it is kept from the first step, and no edge is needed for it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from edgewise.attention.edge_gate import gates_of
from edgewise.attention.gate import resting
from edgewise.attention.tap import tap
from edgewise.data import Batch
from edgewise.evaluation import parts, run_model

REST_TOKENS = 4096
"""Tokens from which the mean is taken."""
_SHORT = 512
"""Tokens of a row, and one row at a time: all weights of a layer are held at once."""
_LITTLE = 0.02
"""The attention weight below which edges are taken for those that will be closed."""
Kept = Callable[[int, Tensor], Tensor]
"""Which edges stay, given a layer's number and its attention weights, [batch, heads, queries, keys]."""


def edges_of_weight(sinks: bool) -> Kept:
    """Those that are attended to more than a little; without sinks, none to the first token."""

    def kept(layer: int, weights: Tensor) -> Tensor:
        enough = weights >= _LITTLE
        return enough if sinks else enough & ~resting(weights > 0)

    return kept


@torch.no_grad()
def mean_unattended(dense: nn.Module, batch: Batch, kept: Kept) -> list[Tensor]:
    """The mean value over the edges that are not kept, by their weight: of each layer [kv_heads, d]."""
    gates = gates_of(dense)
    totals: list[Tensor | float] = [0.0] * len(gates)
    masses: list[Tensor | float] = [0.0] * len(gates)
    values: dict[int, Tensor] = {}

    def remember(layer: int, v: Tensor) -> None:  # [batch, kv_heads, keys, d]
        values[layer] = v

    def add(layer: int, weights: Tensor) -> None:  # [batch, heads, queries, keys]
        closed = weights * (1 - kept(layer, weights).to(weights))
        received = closed.sum(2).unflatten(1, (gates[layer].kv_heads, -1)).sum(2)
        totals[layer] = totals[layer] + torch.einsum("bhk,bhkd->hd", received, values.pop(layer).float())
        masses[layer] = masses[layer] + received.sum((0, 2))[:, None]

    with tap(dense, edit={"values": remember, "weights": add}):  # pyright: ignore
        for row in parts(_cut(batch, _SHORT), 1, next(dense.parameters()).device):
            run_model(dense, row)
    return [total / mass.clamp(min=1e-9) for total, mass in zip(totals, masses, strict=True)]  # pyright: ignore


def _cut(batch: Batch, length: int) -> Batch:
    """Rows of at most that length; what is left over of each is left out."""
    length = min(length, batch.ids.shape[1])

    def pieces(x: Tensor) -> Tensor:
        return x[:, : x.shape[1] // length * length].unflatten(1, (-1, length)).flatten(0, 1)

    positions = None if batch.positions is None else pieces(batch.positions)
    return Batch(pieces(batch.ids), pieces(batch.targets), positions)


def give_rest(model: nn.Module, means: Sequence[Tensor] | None) -> None:
    """Let attending to nothing have these values, one for each layer, or none."""
    for layer, gate in enumerate(gates_of(model)):
        gate.rest = None if means is None else nn.Parameter(means[layer].to(gate.b.device))


@contextmanager
def at_rest(model: nn.Module, means: Sequence[Tensor] | None) -> Iterator[None]:
    """The same for a `with` block, for a model that has none."""
    give_rest(model, means)
    try:
        yield
    finally:
        give_rest(model, None)
