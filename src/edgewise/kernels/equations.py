"""Gated attention: the equations, and a reference implementation that autograd differentiates.

Per head, for each query i and each key j that is visible to i (causal mask, padding mask):

    s_ij = q_i . k_j * scale               attention score of the host model
    z_ij = s_ij - kappa * lse_i + b_h      gate logit, lse_i = log sum_j exp s_ij
    u_ij ~ Uniform(0, 1), n = logit(u)     when sampling; n = 0 (u = 1/2) otherwise
    M_ij = 1 if z_ij + n_ij > 0 else 0     a Bernoulli(sigmoid(z)) sample; z > 0 when deterministic
    p_i. = softmax_j(s_ij)                 over all visible keys, not only the open ones
    y_i  = sum_j M_ij p_ij v_j             masked after the softmax, not renormalised

kappa selects the gate. kappa = 0: the score itself decides (`score`, the paper's gate; b is a constant). kappa = 1:
z = log p + b_h, so an edge is open when its attention weight exceeds exp(-b_h) (`relative`; b_h is learned per head).

Attention sinks. Many models put attention mass on the first token when no other key is relevant. That weight is large, so
either gate keeps the edge open for nearly every query, although it carries little information. A gate without sinks sets
z_ij = -inf where j is the first visible key and j != i. The weight stays in the softmax, so this mass reads nothing.

Null value. Closed attention mass may read a learned vector r per key/value head, where the paper has 0:

    y_i  = sum_j M_ij p_ij v_j + (1 - sum_j M_ij p_ij) r  =  sum_j M_ij p_ij (v_j - r) + r

With all gates open it has no effect, since a row of p sums to 1. Diffuse attention mostly reads the mean of many values, and
a null value supplies that without edges. `gating/edge_gate.py` computes the right-hand side: the kernels get v - r as v.

Gradients are straight-through: forward uses M, backward the slope of sigmoid(z + n). With P = exp(s - lse), G = dO V^T,
D_i = dO_i . O_i, E = exp z, g = sigmoid(z + n) = uE / (1 - u + uE), pi = sigmoid(z) = E / (1 + E) and c_i the gradient of
the loss with respect to the row's expected number of open edges sum_j pi_ij:

    dz = P * g (1 - g) * G + c * pi (1 - pi)
    dS = P * (M * G - D) + dz - kappa * P * sum_j dz
    dV = (M * P)^T dO,   dQ = scale * dS K,   dK = scale * dS^T Q,   db = sum dz

Closed heads. With kappa = 1 a head with b <= 0 never opens when deterministic, since p <= 1. A head that is listed in
`closed` has z = -inf throughout: no edge is open or expected to be, y = 0 and every gradient is 0. Backends skip it.

The fast paths (`dispatch.py`) compute this in blocks and store only O, lse and the inputs for the backward pass.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from edgewise.kernels.noise import noise_keys, uniform_noise

Mode = Literal["dense", "sample", "deterministic"]
Matrix = Literal["scores", "gates", "weights"]
"""The matrices of size queries x keys: s before masking, M and M * p."""


class GateSpec(NamedTuple):
    """Constants of one call: everything but q, k, v and b, which gradients flow to."""

    kappa: float
    mode: Mode
    scale: float
    mask: Tensor | None = (
        None  # bool, [1 or batch, 1 or heads, queries, keys], True where visible; None: causal
    )
    sinks: bool = True  # whether edges to the first visible key may open
    seed: int | Tensor = 0  # int64 scalar
    first_sequence: int = 0  # index of this batch's first sequence in a larger batch; the noise depends on it
    starts: Tensor | None = (
        None  # int, [1 or batch, queries]: first visible key of each query (packed documents, sliding windows)
    )
    closed: Tensor | None = None  # bool, [heads]: z = -inf in these heads, which are skipped
    counts: bool = True  # whether edges must be counted; without, a backend may return NaN as their number


class AttentionOutput(NamedTuple):
    """Result of gated attention."""

    y: Tensor  # [batch, heads, queries, d_v]
    expected_edges: Tensor  # [batch, heads]: sum of sigmoid(z), differentiable
    open_edges: Tensor  # [batch, heads]: sum of M
    weights: Tensor | None = None  # [batch, heads, queries, keys]: M * p, from the reference only


def visible_keys(
    queries: int, keys: int, mask: Tensor | None, device: torch.device, starts: Tensor | None = None
) -> Tensor:
    """Causal mask combined with `mask` and `starts`, bool [1 or batch, 1 or heads, queries, keys].

    The last query is at the last key.
    """
    visible = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)[None, None]
    if starts is not None:
        visible = visible & (torch.arange(keys, device=device) >= starts[:, None, :, None])
    return visible if mask is None else visible & mask


def sink_edges(visible: Tensor) -> Tensor:  # bool, [..., queries, keys] -> the same shape
    """Each query's edge to the first visible key, unless that is the query's own position (the last visible one)."""
    first = visible & (visible.cumsum(-1) == 1)
    return first & (visible.sum(-1, keepdim=True) > 1)


def full_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to float32, or to float64 if the first tensor is: half-precision scores would make the threshold coarse."""
    dtype = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    return tuple(x.to(dtype) for x in tensors)


def reference(
    q: Tensor,  # [batch, heads, queries, d]
    k: Tensor,  # [batch, kv_heads, keys, d]
    v: Tensor,  # [batch, kv_heads, keys, d_v]
    b: Tensor,  # [heads]
    spec: GateSpec,
    edit: Callable[[Matrix, Tensor], Tensor] = lambda name, x: x,
) -> AttentionOutput:
    """Gated attention as in the equations above, every queries x keys matrix materialised; `edit` may replace each."""
    with torch.autocast(q.device.type, enabled=False):
        dtype, (q, k, v, b) = v.dtype, full_precision(q, k, v, b)
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        visible = visible_keys(q.shape[2], k.shape[2], spec.mask, q.device, spec.starts)
        s = edit("scores", q @ k.mT * spec.scale).masked_fill(~visible, -torch.inf)
        if spec.mode == "dense":
            p = _softmax(s, visible)
            M = edit("gates", visible.to(s.dtype).expand_as(s))
            expected_edges = M.sum((-2, -1))
        else:
            lse = s.logsumexp(-1, keepdim=True)
            lse = lse.masked_fill(lse.isneginf(), 0.0)  # a padded query, for which p = 0
            p = torch.exp(s - lse)
            z = s - spec.kappa * lse + b.view(-1, 1, 1)
            if not spec.sinks:
                z = z.masked_fill(sink_edges(visible), -torch.inf)
            if spec.closed is not None:
                z = z.masked_fill(spec.closed.view(-1, 1, 1), -torch.inf)
            n = _logistic_noise(z, spec)
            g = torch.sigmoid(z + n)
            M = edit("gates", (z + n > 0).to(s.dtype)) + (g - g.detach())
            expected_edges = torch.sigmoid(z).sum((-2, -1))
        weights = edit("weights", M * p)
        open_edges = (M.detach() > 0.5).to(s.dtype).sum((-2, -1))
        return AttentionOutput((weights @ v).to(dtype), expected_edges, open_edges, weights)


def _softmax(s: Tensor, visible: Tensor) -> Tensor:
    """Softmax over visible keys; 0 for a padded query, which has none."""
    return s.softmax(-1).masked_fill(~visible.any(-1, keepdim=True), 0.0)


def _logistic_noise(z: Tensor, spec: GateSpec) -> Tensor | float:  # [batch, heads, queries, keys]
    if spec.mode != "sample":
        return 0.0
    batch, heads, queries, keys = z.shape
    noise = noise_keys(spec.seed, (batch, heads, queries), z.device, spec.first_sequence)
    return uniform_noise(noise, keys, z.dtype).logit()
