"""Gated attention, fast path: the one place that knows which backend computes it."""

import torch
from torch import Tensor

from edgewise.core.errors import EdgewiseError
from edgewise.kernels.dense import dense_attention
from edgewise.kernels.equations import AttentionOutput, GateSpec, full_precision, reference
from edgewise.kernels.operator import BACKENDS, gated_attention_operator


def backend_for(device: torch.device) -> str:
    """Name of the fastest backend on a device."""
    return device.type if device.type in ("cpu", "cuda") else "torch"


def gated_attention(
    q: Tensor,  # [batch, heads, queries, d]
    k: Tensor,  # [batch, kv_heads, keys, d]
    v: Tensor,  # [batch, kv_heads, keys, d_v]
    b: Tensor,  # [heads]
    spec: GateSpec,
    backend: str | None = None,
) -> AttentionOutput:
    """The same as `equations.reference`, but without weights: no queries x keys matrix is kept.

    `backend`: a name from `operator.BACKENDS`, or "reference"; None: the fastest on this device.
    """
    if spec.mode == "dense":
        return dense_attention(q, k, v, spec.scale, spec.mask, spec.starts)
    name = backend or backend_for(q.device)
    if name == "reference":
        return reference(q, k, v, b, spec)._replace(weights=None)
    if name not in BACKENDS:
        raise EdgewiseError(f"unknown `backend` {name!r}; the backends are: reference, {', '.join(BACKENDS)}")
    dtype = v.dtype
    if BACKENDS[name].takes_half and q.dtype in (torch.float16, torch.bfloat16):
        k, v, b = k.to(q.dtype), v.to(q.dtype), b.float()
    else:
        q, k, v, b = full_precision(q, k, v, b)
    output = gated_attention_operator(q, k, v, b, spec, name)
    return output._replace(y=output.y.to(dtype))
