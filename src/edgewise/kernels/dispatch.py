"""Gated attention, fast path: the one place that knows which backend computes it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from edgewise.kernels.blocks import blocked_attention
from edgewise.kernels.cpu import CPU_ROWS
from edgewise.kernels.dense import dense_attention
from edgewise.kernels.equations import AttentionOutput, GateSpec, full_precision
from edgewise.kernels.rows import TORCH_ROWS

Backend = Callable[[Tensor, Tensor, Tensor, Tensor, GateSpec], AttentionOutput]
"""(q, k, v, b, spec) in single or double precision -> y, edge counts; differentiable."""

BACKENDS: dict[str, Backend] = {
    "cpu": partial(blocked_attention, row_passes=CPU_ROWS),  # fused loops
    "torch": partial(blocked_attention, row_passes=TORCH_ROWS),  # tensor operations, any device
}


def backend_for(device: torch.device) -> Backend:
    """The fastest backend on a device."""
    return BACKENDS["cpu" if device.type == "cpu" else "torch"]


def gated_attention(
    q: Tensor,  # [batch, heads, queries, d]
    k: Tensor,  # [batch, kv_heads, keys, d]
    v: Tensor,  # [batch, kv_heads, keys, d_v]
    b: Tensor,  # [heads]
    spec: GateSpec,
    backend: Backend | None = None,
) -> AttentionOutput:
    """The same as `equations.reference`, but without weights: no queries x keys matrix is kept."""
    if spec.mode == "dense":
        return dense_attention(q, k, v, spec.scale, spec.mask)
    backend = backend or backend_for(q.device)
    with torch.autocast(q.device.type, enabled=False):
        dtype, (q, k, v, b) = v.dtype, full_precision(q, k, v, b)
        output = backend(q, k, v, b, spec)
        return output._replace(y=output.y.to(dtype))
