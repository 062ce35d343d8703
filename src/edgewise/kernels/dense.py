"""Dense attention: all gates open."""

import torch
import torch.nn.functional as F
from torch import Tensor

from edgewise.kernels.equations import AttentionOutput, visible_keys


def dense_attention(
    q: Tensor,  # [batch, heads, queries, d]
    k: Tensor,  # [batch, kv_heads, keys, d]
    v: Tensor,  # [batch, kv_heads, keys, d_v]
    scale: float,
    mask: Tensor | None = None,  # bool, [1 or batch, 1 or heads, queries, keys]
    starts: Tensor | None = None,  # int, [1 or batch, queries]: first visible key of each query
) -> AttentionOutput:
    """The host model's own attention, by torch's kernel; every visible edge counts as open."""
    q, k = q.to(v.dtype), k.to(v.dtype)  # subtracting the null value may have raised the precision of v
    plain = mask is None and starts is None and q.shape[2] == k.shape[2]
    visible = None if plain else visible_keys(q.shape[2], k.shape[2], mask, q.device, starts)
    y = F.scaled_dot_product_attention(
        q, k, v, visible, is_causal=plain, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    if visible is None:
        pairs = torch.full((1, 1), q.shape[2] * (q.shape[2] + 1) / 2, device=q.device)
    else:
        pairs = visible.sum((-2, -1))
        y = y.masked_fill(~visible.any(-1, keepdim=True), 0.0)  # a padded query: 0, as in the other modes
    edges = pairs.to(q.device, torch.float32).expand(q.shape[0], q.shape[1])
    return AttentionOutput(y, edges, edges)
