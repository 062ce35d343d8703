"""Initial null values: the mean of the values that closed edges would have brought, weighted by attention. Attention spread
thin over many keys brings mostly that mean, so it is kept from the first step, and no edge is needed for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.data import Batch
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.measure.forward import forward
from edgewise.training.sparsify.masks import Mask

INITIAL_THRESHOLD = 0.02
"""Attention weight below which edges count as closed when null values are initialised."""
_TOKENS = 4096
"""Tokens over which the mean is taken."""
_MAX_CONTEXT = 512
"""Tokens read of each sequence, one sequence at a time: all attention weights of a layer are in memory."""


def sequences_needed(context: int) -> int:
    """Sequences of `context` tokens that give the mean enough text."""
    return max(1, _TOKENS // min(context, _MAX_CONTEXT))


@torch.no_grad()
def mean_closed_values(
    dense: Any, batch: Batch, mask: Mask, max_context: int = _MAX_CONTEXT
) -> list[Tensor]:  # a layer: [kv_heads, d]
    """Mean value over the edges that a mask closes, weighted by their attention, for each layer."""
    gates = gates_of(dense)
    totals: list[Tensor | float] = [0.0] * len(gates)
    masses: list[Tensor | float] = [0.0] * len(gates)
    values: dict[int, Tensor] = {}

    def keep_values(layer: int, v: Tensor) -> None:  # [batch, kv_heads, keys, d]
        values[layer] = v

    def add_closed(layer: int, weights: Tensor) -> None:  # [batch, heads, queries, keys]
        closed = weights * (1 - mask(layer, weights))
        received = closed.sum(2).unflatten(1, (gates[layer].kv_heads, -1)).sum(2)
        totals[layer] = totals[layer] + torch.einsum("bhk,bhkd->hd", received, values.pop(layer).float())
        masses[layer] = masses[layer] + received.sum((0, 2))[:, None]

    with tap(dense, edit={"values": keep_values, "weights": add_closed}):  # pyright: ignore
        for sequence in batch.micro_batches(1, next(dense.parameters()).device):
            # the whole model: FSDP gathers the layers of no part of it
            forward(dense, sequence.select(slice(None), slice(max_context)))
    return [total / mass.clamp(min=1e-9) for total, mass in zip(totals, masses, strict=True)]  # pyright: ignore


def set_null_values(model: nn.Module, values: Sequence[Tensor] | None) -> None:
    """Give each layer's gate a null value, [kv_heads, d], or take it away with None."""
    for layer, gate in enumerate(gates_of(model)):
        gate.null_value = None if values is None else nn.Parameter(values[layer].clone().to(gate.b.device))


@contextmanager
def with_null_values(model: nn.Module, values: Sequence[Tensor] | None) -> Iterator[None]:
    """Null values inside a `with` block, for a model that has none."""
    set_null_values(model, values)
    try:
        yield
    finally:
        set_null_values(model, None)
