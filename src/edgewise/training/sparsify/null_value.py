"""The value of attending to nothing, where it starts: the mean of the values that closed edges would have brought. What thin
attention to many keys brings is mostly that, so it is kept from the first step, and no edge is needed for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from edgewise.data import Batch
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.kernels.equations import sink_edges
from edgewise.measure.evaluation import parts, run_rows

REST_TOKENS = 4096
"""Tokens from which the mean is taken."""
_SHORT = 512
"""Tokens of each row that are read, one row at a time: all weights of a layer are held at once."""
LITTLE = 0.02
"""The attention weight below which edges are taken for those that will be closed."""


class Mask(Protocol):
    """Which edges stay, given a layer's attention weights."""

    def __call__(self, layer: int, weights: Tensor) -> Tensor:
        """[batch, heads, queries, keys] -> the same, or [heads, ...]"""
        ...


def above(least: float, sinks: bool = True) -> Mask:
    """Edges of more weight; without sinks, none to the first token."""

    def mask(layer: int, weights: Tensor) -> Tensor:
        enough = weights > least
        return (enough if sinks else enough & ~sink_edges(weights > 0)).to(weights)

    return mask


def rows_to_read(context: int) -> int:
    return max(1, REST_TOKENS // min(context, _SHORT))


@torch.no_grad()
def mean_unattended(dense: Any, batch: Batch, mask: Mask) -> list[Tensor]:
    """The mean value over the edges that a mask closes, by their weight: of each layer [kv_heads, d]."""
    gates = gates_of(dense)
    totals: list[Tensor | float] = [0.0] * len(gates)
    masses: list[Tensor | float] = [0.0] * len(gates)
    values: dict[int, Tensor] = {}

    def remember(layer: int, v: Tensor) -> None:  # [batch, kv_heads, keys, d]
        values[layer] = v

    def add(layer: int, weights: Tensor) -> None:  # [batch, heads, queries, keys]
        closed = weights * (1 - mask(layer, weights))
        received = closed.sum(2).unflatten(1, (gates[layer].kv_heads, -1)).sum(2)
        totals[layer] = totals[layer] + torch.einsum("bhk,bhkd->hd", received, values.pop(layer).float())
        masses[layer] = masses[layer] + received.sum((0, 2))[:, None]

    with tap(dense, edit={"values": remember, "weights": add}):  # pyright: ignore
        for row in parts(batch, 1, next(dense.parameters()).device):
            run_rows(dense.base_model, row.select(slice(None), slice(_SHORT)))
    return [total / mass.clamp(min=1e-9) for total, mass in zip(totals, masses, strict=True)]  # pyright: ignore


def set_null_values(model: nn.Module, means: Sequence[Tensor] | None) -> None:
    """Let attending to nothing have these values, one for each layer, or none."""
    for layer, gate in enumerate(gates_of(model)):
        gate.null_value = None if means is None else nn.Parameter(means[layer].clone().to(gate.b.device))


@contextmanager
def with_null_values(model: nn.Module, means: Sequence[Tensor] | None) -> Iterator[None]:
    """The same for a `with` block, for a model that has none."""
    set_null_values(model, means)
    try:
        yield
    finally:
        set_null_values(model, None)
