"""The value of attending to nothing, where it starts: the mean of the values that are attended to so little that these edges
will be closed. What thin attention brings, and no edge is needed for, is kept from the first step."""

import torch
from torch import Tensor, nn

from edgewise.attention.edge_gate import gates_of
from edgewise.attention.gate import resting
from edgewise.attention.tap import tap
from edgewise.data import Batch
from edgewise.evaluation import parts, run_model

REST_TOKENS = 4096
"""Tokens from which the mean is taken."""
_LITTLE = 0.02
"""The attention weight below which edges count as closed."""


@torch.no_grad()
def mean_unattended(
    dense: nn.Module, batch: Batch, rows: int, sinks: bool
) -> list[Tensor]:  # a layer: [kv_heads, d]
    """The mean value over edges of little weight, by their weight; without sinks, also over those to the first token."""
    gates = gates_of(dense)
    totals: list[Tensor | float] = [0.0] * len(gates)
    masses: list[Tensor | float] = [0.0] * len(gates)
    values: dict[int, Tensor] = {}

    def remember(layer: int, v: Tensor) -> None:  # [batch, kv_heads, keys, d]
        values[layer] = v

    def add(layer: int, weights: Tensor) -> None:  # [batch, heads, queries, keys]
        closed = weights < _LITTLE if sinks else (weights < _LITTLE) | resting(weights > 0)
        received = (weights * closed).sum(2).unflatten(1, (gates[layer].kv_heads, -1)).sum(2)
        totals[layer] = totals[layer] + torch.einsum("bhk,bhkd->hd", received, values.pop(layer).float())
        masses[layer] = masses[layer] + received.sum((0, 2))[:, None]

    with tap(dense, edit={"values": remember, "weights": add}):  # pyright: ignore
        for part in parts(batch, rows, next(dense.parameters()).device):
            run_model(dense, part)
    return [total / mass.clamp(min=1e-9) for total, mass in zip(totals, masses, strict=True)]  # pyright: ignore
