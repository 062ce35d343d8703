"""Disturbed passes: the text on which a transcoder learns what MLPs do under interventions.

On undisturbed text, features of early layers can explain what later MLPs write without reading what these respond to,
because the one is always followed by the other. A prediction of an intervention needs features that respond as the MLPs do.
So in half of the sequences some heads are intervened on: each puts out what it puts out on another sequence (resample
ablation), or its null value (zero without one). What is learned stays the same: the MLPs' own outputs from their own inputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from edgewise.core.devices import upload
from edgewise.gating.edge_gate import EdgeGate, gates_of
from edgewise.gating.tap import tap

DISTURBED = 0.5
"""Share of the sequences."""
MOST_HEADS = 1 / 3
"""Of a disturbed sequence, the heads that are intervened on: one to this share of all, uniformly in the logarithm."""


@contextmanager
def disturbed_heads(model: nn.Module, n: int, generator: torch.Generator) -> Iterator[None]:
    """Intervene on heads of the forward passes of a block, of n sequences each."""
    gates = {gate.layer: gate for gate in gates_of(model)}
    n_heads = sum(gate.heads for gate in gates.values())
    disturbed = torch.rand(n, generator=generator) < DISTURBED
    share = (n_heads * MOST_HEADS) ** torch.rand(n, generator=generator) / n_heads * disturbed  # [n]
    chosen, ablated = (
        {layer: torch.rand(n, gate.heads, generator=generator) < p for layer, gate in gates.items()}
        for p in (share[:, None], torch.tensor(0.5))
    )

    def intervene(layer: int, y: Tensor) -> Tensor:  # [n, heads, T, d]
        of_layer, to_null = (upload(mask[layer], y.device)[:, :, None, None] for mask in (chosen, ablated))
        replacement = torch.where(to_null, _null_values(gates[layer]).to(y), y.roll(1, 0))
        return torch.where(of_layer, replacement, y)

    with tap(model, edit={"outputs": intervene}):
        yield


def _null_values(gate: EdgeGate) -> Tensor:  # [heads, 1, d], or zero
    if gate.null_value is None:
        return torch.zeros(())
    return gate.null_value.detach().repeat_interleave(gate.heads // gate.kv_heads, 0)[:, None]
