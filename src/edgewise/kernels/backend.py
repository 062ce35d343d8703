"""What a backend of gated attention computes: a forward and a backward pass without autograd."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.kernels.equations import GateSpec, sink_edges, visible_keys


class Inputs(NamedTuple):
    """What gradients flow to."""

    q: Tensor  # [batch, heads, queries, d]
    k: Tensor  # [batch, kv_heads, keys, d]
    v: Tensor  # [batch, kv_heads, keys, d_v]
    b: Tensor  # [heads]


class Forward(NamedTuple):
    """Result of a forward pass, and with the inputs all that the backward pass needs."""

    y: Tensor  # [batch, heads, queries, d_v]
    expected_edges: Tensor  # [batch, heads]
    open_edges: Tensor  # [batch, heads]
    lse: Tensor  # [batch, heads, queries]


class Gradients(NamedTuple):
    """Gradients of the inputs."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    db: Tensor


class Backend(NamedTuple):
    """One implementation of the equations; inputs in one precision, float32 or float64 unless it takes half precision."""

    forward: Callable[[Inputs, GateSpec], Forward]
    backward: Callable[[Inputs, GateSpec, Forward, Tensor, Tensor], Gradients] | None
    """(inputs, spec, result of the forward pass, gradients at y and at the expected edges); None: inference only."""
    takes_half: bool = False


def sink_keys(inputs: Inputs, spec: GateSpec) -> Tensor:
    """Key of each query's sink edge, -1 if it has none: int32, [1 or batch, 1 or heads, queries]."""
    queries, keys, device = inputs.q.shape[2], inputs.k.shape[2], inputs.q.device
    if spec.mask is not None:
        edges = sink_edges(visible_keys(queries, keys, spec.mask, device, spec.starts))
        return torch.where(edges.any(-1), edges.int().argmax(-1), -1).int().contiguous()
    own = torch.arange(keys - queries, keys, device=device)
    first = torch.zeros(1, queries, device=device) if spec.starts is None else spec.starts
    return torch.where(first < own, first, -1).int()[:, None].contiguous()
