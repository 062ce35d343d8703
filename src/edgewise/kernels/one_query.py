"""Gated attention of one query, as when a token is generated: a few small tensor operations, without blocks."""

import torch

from edgewise.kernels.backend import Forward, Inputs
from edgewise.kernels.equations import GateSpec, sink_edges, visible_keys


def forward_one_query(inputs: Inputs, spec: GateSpec) -> Forward:
    """Forward pass of a deterministic gate for the query at the last key, q [batch, heads, 1, d]."""
    q, k, v, b = inputs
    (batch, heads), (kv_heads, keys) = q.shape[:2], k.shape[1:3]
    by_kv_head = (batch, kv_heads, heads // kv_heads, -1)
    s = (q.reshape(by_kv_head) @ k.mT).mul_(spec.scale).view(batch, heads, 1, keys)
    visible = None  # all keys
    if spec.mask is not None or spec.starts is not None or not spec.sinks:
        visible = visible_keys(1, keys, spec.mask, q.device, spec.starts)
        s.masked_fill_(~visible, -torch.inf)
    lse = s.logsumexp(-1, keepdim=True)
    if visible is not None:
        lse.masked_fill_(lse.isneginf(), 0.0)  # a padded query
    z = s - spec.kappa * lse + b.view(-1, 1, 1)
    if visible is not None and not spec.sinks:
        z.masked_fill_(sink_edges(visible), -torch.inf)
    if spec.closed is not None:
        z.masked_fill_(spec.closed.view(-1, 1, 1), -torch.inf)
    M = (z > 0).to(s.dtype)
    weights = s.sub_(lse).exp_().mul_(M)
    y = (weights.view(by_kv_head) @ v).view(batch, heads, 1, -1)
    if spec.counts:
        expected, opened = z.sigmoid().sum((-2, -1)), M.sum((-2, -1))
    else:
        expected, opened = (q.new_full((batch, heads), torch.nan) for _ in range(2))
    return Forward(y, expected, opened, lse[..., 0].contiguous())
