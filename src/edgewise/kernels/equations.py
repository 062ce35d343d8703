"""Gated attention: the equations, once as a reference that autograd differentiates, once as a fast path.

Per head and for each pair of a query i and a key j that i may see:

    s_ij = q_i . k_j * scale               the host model's own score
    z_ij = s_ij - kappa * lse_i + b_h      gate logit, lse_i = log sum_j exp s_ij
    u_ij ~ Uniform(0, 1), n = logit(u)     when sampling; n = 0 (u = 1/2) otherwise
    M_ij = 1 if z_ij + n_ij > 0 else 0     a Bernoulli(sigmoid(z)) sample; z > 0 when deterministic
    p_i. = softmax_j(s_ij)                 over all keys in sight, not only the open ones
    y_i  = sum_j M_ij p_ij v_j             masked after the softmax, not renormalised

kappa tells the gates apart. With kappa = 0 the score itself decides (`score`, the paper's gate: b is a constant). With
kappa = 1, z = log p + b_h: an edge is open when its attention weight exceeds exp(-b_h) (`relative`, b_h learned per head).

Many models rest on the first token of a text when there is nothing to look at: a *sink*. Its weight is large, so either gate
keeps that edge for nearly every query, though it brings little. A gate without sinks never opens it: z_ij = -inf where j is
the first key in sight and not i itself. The weight stays in the softmax, so to rest there is to attend to nothing.

To attend to nothing can have a value r of its own, learned for each key/value head, where the paper has 0:

    y_i  = sum_j M_ij p_ij v_j + (1 - sum_j M_ij p_ij) r  =  sum_j M_ij p_ij (v_j - r) + r

With all gates open it makes no difference, since a row of p sums to 1. But what thin attention to many keys brings is mostly
their mean, and that needs no edges. The right-hand side is how it is computed (`edge_gate.py`): all below sees v - r as v.

Gradients are straight-through: forward uses M, backward the slope of sigmoid(z + n). With P = exp(s - lse), G = dO V^T,
D_i = dO_i . O_i, E = exp z, g = sigmoid(z + n) = uE / (1 - u + uE), pi = sigmoid(z) = E / (1 + E) and c_i the gradient that
arrives at the row's expected edges sum_j pi_ij:

    dz = P * g (1 - g) * G + c * pi (1 - pi)
    dS = P * (M * G - D) + dz - kappa * P * sum_j dz
    dV = (M * P)^T dO,   dQ = scale * dS K,   dK = scale * dS^T Q,   db = sum dz

The fast path computes this in blocks of queries and keeps only O, lse and the inputs for the backward pass.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Mode = Literal["dense", "sample", "deterministic"]
Stage = Literal["scores", "gates", "weights"]


class Gated(NamedTuple):
    """What gated attention gives back."""

    y: Tensor  # [batch, heads, queries, d]
    edges: Tensor  # [batch, heads]: expected number of open edges, sum of sigmoid(z); differentiable
    opened: Tensor  # [batch, heads]: edges that were open
    weights: Tensor | None = None  # [batch, heads, queries, keys]: M * p, from the reference only


# ------------------------------------------------------------------------------------------------------------------ noise


def _mix(x: Tensor) -> Tensor:
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    return x ^ (x >> 15)


def noise_keys(
    seed: int, batch: int, heads: int, queries: int, device: torch.device, first_row: int = 0
) -> Tensor:
    """Two 32-bit keys for each row, [2, batch, heads, queries] as int64: the only state the noise needs.

    `first_row` says where this batch begins in a larger one, so that its parts see the noise they would see together.
    """
    z = (seed + 0x9E3779B97F4A7C15) & (2**64 - 1)  # scramble, so that neighbouring seeds share nothing
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        z = ((z ^ (z >> shift)) * factor) & (2**64 - 1)
    row = torch.arange(first_row * heads * queries, (first_row + batch) * heads * queries, device=device)
    row = row.view(batch, heads, queries) * 0x9E3779B9
    both = [_mix((row + word) & 0xFFFFFFFF) for word in (z & 0xFFFFFFFF, z >> 32)]
    return torch.stack([_mix((x * 0x846CA68B) & 0xFFFFFFFF) for x in both])


def noise(keys: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """u of every pair, [batch, heads, queries, columns], in (0, 1).

    A hash of (row keys, column) instead of a stream of random numbers: any block of it can be made again alone, so the
    backward pass needs no copy and the result does not depend on how the work was cut into blocks.
    """
    column = torch.arange(columns, device=keys.device)
    x = _mix((keys[0, ..., None] + column * 0x9E3779B9) & 0xFFFFFFFF)
    x = ((x + keys[1, ..., None]) * 0x846CA68B) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return ((x >> 9).to(torch.float32) * 2.0**-23 + 2.0**-24).to(dtype)  # 24 bits: exact


def draw_seed() -> int:
    """A seed from torch's own generator, so that `torch.manual_seed` makes sampling reproducible."""
    return int(torch.randint(0, 2**62, ()).item())


# -------------------------------------------------------------------------------------------------------------- reference


def in_sight(queries: int, keys: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Which keys each query may see, [1 or batch, 1 or heads, queries, keys]. The last query sits at the last key."""
    causal = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return causal[None, None] if mask is None else causal & mask


def sink_edges(seen: Tensor) -> Tensor:  # bool, [..., queries, keys] -> the same shape
    """The edge of each query to the first key in sight, if that is not its own, which is the last."""
    first = seen & (seen.cumsum(-1) == 1)
    return first & (seen.sum(-1, keepdim=True) > 1)


def reference(
    q: Tensor,  # [batch, heads, queries, d]
    k: Tensor,  # [batch, kv_heads, keys, d]
    v: Tensor,  # [batch, kv_heads, keys, d_v]
    b: Tensor,  # [heads]
    kappa: float,
    mode: Mode,
    scale: float,
    mask: Tensor | None = None,  # bool, [1 or batch, 1 or heads, queries, keys]
    seed: int = 0,
    first_row: int = 0,
    edit: Callable[[Stage, Tensor], Tensor] = lambda stage, x: x,
    sinks: bool = True,
) -> Gated:
    """The equations above, in their order, with every T x T matrix in the open. `edit` may replace each as it passes."""
    with torch.autocast(q.device.type, enabled=False):
        q_, k_, v_, b_ = _full_precision(q, k, v, b)
        out = _reference(q_, k_, v_, b_, kappa, mode, scale, mask, seed, first_row, edit, sinks)
    return out._replace(y=out.y.to(v.dtype))


def _full_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """At least single precision: a threshold between half-precision scores would be a coarse one."""
    real = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    return tuple(x.to(real) for x in tensors)


def _reference(
    q: Tensor, k: Tensor, v: Tensor, b: Tensor, kappa, mode, scale, mask, seed, first_row, edit, sinks
) -> Gated:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    seen = in_sight(q.shape[2], k.shape[2], mask, q.device)
    s = edit("scores", q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    if mode == "dense":  # no gate needs lse: one pass instead of three
        p = s.softmax(-1)
        if mask is not None:
            p = p.masked_fill(~seen.any(-1, keepdim=True), 0.0)  # a padded query sees nothing
        M = edit("gates", seen.to(s.dtype).expand_as(s))
        edges = M.sum((-2, -1))
    else:
        lse = s.logsumexp(-1, keepdim=True)
        lse = lse.masked_fill(lse.isneginf(), 0.0)  # a padded query again: p = 0
        p = torch.exp(s - lse)
        z = s - kappa * lse + b.view(-1, 1, 1)
        if not sinks:
            z = z.masked_fill(sink_edges(seen), -torch.inf)
        keys = noise_keys(seed, q.shape[0], q.shape[1], q.shape[2], q.device, first_row)
        u = noise(keys, s.shape[-1], s.dtype) if mode == "sample" else None
        n = 0.0 if u is None else u.logit()
        g = torch.sigmoid(z + n)
        M = edit("gates", (z + n > 0).to(s.dtype)) + (g - g.detach())
        edges = torch.sigmoid(z).sum((-2, -1))
    weights = edit("weights", M * p)
    return Gated(weights @ v, edges, (M.detach() > 0.5).to(s.dtype).sum((-2, -1)), weights)


# -------------------------------------------------------------------------------------------------------------- fast path

_QUERIES = 64  # queries to a block
_ELEMENTS = (
    1 << 20
)  # scores to a block: 4 MB, which stay in the cache from the matrix product to the row pass


def gated_attention(
    q: Tensor,  # [batch, heads, queries, d]
    k: Tensor,  # [batch, kv_heads, keys, d]
    v: Tensor,  # [batch, kv_heads, keys, d_v]
    b: Tensor,  # [heads]
    kappa: float,
    mode: Mode,
    scale: float,
    mask: Tensor | None = None,  # bool, [1 or batch, 1 or heads, queries, keys]
    seed: int = 0,
    first_row: int = 0,
    sinks: bool = True,
) -> Gated:
    """The same as `reference`, without weights: nothing of size queries x keys outlives its block."""
    if mode == "dense":
        return _dense(q, k, v, scale, mask)
    with torch.autocast(q.device.type, enabled=False):
        tensors = _full_precision(q, k, v, b)
        y, edges, opened = _GatedAttention.apply(
            *tensors, kappa, mode == "sample", scale, mask, seed, first_row, sinks
        )
    return Gated(y.to(v.dtype), edges, opened)


def _dense(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Gated:
    """All gates open is the host's own attention, so torch's kernel computes it."""
    q, k = q.to(v.dtype), k.to(v.dtype)  # values less that of attending to nothing may be more precise
    plain = mask is None and q.shape[2] == k.shape[2]
    seen = None if plain else in_sight(q.shape[2], k.shape[2], mask, q.device)
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=seen is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    if seen is None:
        pairs = torch.full((1, 1), q.shape[2] * (q.shape[2] + 1) / 2, device=q.device)
    else:
        pairs = seen.sum((-2, -1))
        y = y.masked_fill(~seen.any(-1, keepdim=True), 0.0)  # a padded query: 0, as in the other modes
    edges = pairs.to(q.device, torch.float32).expand(q.shape[0], q.shape[1])
    return Gated(y, edges, edges)


class Rows(NamedTuple):
    """What the row passes of one block need to know besides the scores."""

    b: Tensor  # [heads]
    kappa: float
    keys: Tensor  # [2, batch, heads, queries]
    sample: bool
    mask: Tensor | None
    first: int  # first (batch, kv_head) pair of the block
    groups: int
    kv_heads: int
    i0: int  # first query of the block
    offset: int  # keys - queries
    sinks: bool


class _GatedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, b, kappa, sample, scale, mask, seed, first_row, sinks):  # pyright: ignore
        batch, heads, queries, _ = q.shape
        kv_heads, width = k.shape[1], v.shape[-1]
        groups = heads // kv_heads
        keys = noise_keys(seed, batch, heads, queries, q.device, first_row)
        whole = Rows(b, kappa, keys, sample, mask, 0, groups, kv_heads, 0, k.shape[2] - queries, sinks)
        Q, K, V = _by_kv_head(q, groups) * scale, k.flatten(0, 1), v.flatten(0, 1)
        O = q.new_empty(batch * kv_heads, groups, queries, width)
        lse, edges, opened = (q.new_empty(batch * kv_heads, groups, queries) for _ in range(3))
        for rows, c, i, hi, (S,) in _blocks(whole, q, buffers=1):
            torch.bmm(_rows_of(Q, c, i), K[c, :hi].mT, out=S)
            row_lse, row_edges, row_open = _row_passes(S)[0](S, rows)
            O[c, :, i] = torch.bmm(S, V[c, :hi]).unflatten(1, (groups, -1))
            for all_rows, part in ((lse, row_lse), (edges, row_edges), (opened, row_open)):
                all_rows[c, :, i] = part.unflatten(1, (groups, -1))
        shape = (batch, heads, queries)
        O = O.view(*shape, width)
        ctx.save_for_backward(q, k, v, b, O, lse, keys, mask)
        ctx.whole, ctx.scale = whole._replace(b=None, keys=None, mask=None), scale
        opened = opened.view(shape).sum(-1)
        ctx.mark_non_differentiable(opened)
        return O, edges.view(shape).sum(-1), opened

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dO, dedges, _):  # pyright: ignore
        with torch.autocast(dO.device.type, enabled=False):
            return _GatedAttention._backward(ctx, dO, dedges)

    @staticmethod
    def _backward(ctx: Any, dO: Tensor, dedges: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, b, O, lse, keys, mask = ctx.saved_tensors
        whole, scale = ctx.whole._replace(b=b, keys=keys, mask=mask), ctx.scale
        batch, heads, queries, _ = q.shape
        groups = whole.groups
        Q, K, V = _by_kv_head(q, groups) * scale, k.flatten(0, 1), v.flatten(0, 1)
        D = _by_kv_head((dO * O).sum(-1, keepdim=True), groups)
        c_rows = _by_kv_head(dedges[..., None, None].expand(batch, heads, queries, 1), groups)
        dO = _by_kv_head(dO, groups)
        dQ, dK, dV = torch.empty_like(Q), torch.zeros_like(K), torch.zeros_like(V)
        db = q.new_empty(batch * k.shape[1], groups, queries)
        for rows, c, i, hi, (S, G) in _blocks(whole, q, buffers=2):
            q_rows, dO_rows = _rows_of(Q, c, i), _rows_of(dO, c, i)
            torch.bmm(q_rows, K[c, :hi].mT, out=S)
            torch.bmm(dO_rows, V[c, :hi].mT, out=G)
            row_db = _row_passes(S)[1](
                S, G, lse[c, :, i].flatten(1), _rows_of(D, c, i)[..., 0], _rows_of(c_rows, c, i)[..., 0], rows
            )
            dV[c, :hi].baddbmm_(S.mT, dO_rows)
            dK[c, :hi].baddbmm_(G.mT, q_rows)
            dQ[c, :, i] = torch.bmm(G, K[c, :hi]).unflatten(1, (groups, -1))
            db[c, :, i] = row_db.unflatten(1, (groups, -1))
        dQ.mul_(scale)
        db = db.view(batch, heads, queries).sum((0, 2))
        return dQ.view_as(q), dK.view_as(k), dV.view_as(v), db, None, None, None, None, None, None, None


def _by_kv_head(x: Tensor, groups: int) -> Tensor:
    """[batch, heads, queries, d] -> [batch * kv_heads, groups, queries, d]: query heads beside the key head they share."""
    return x.unflatten(1, (-1, groups)).flatten(0, 1)


def _rows_of(x: Tensor, c: slice, i: slice) -> Tensor:
    """One block's rows, [pairs, groups * queries, d]."""
    return x[c, :, i].flatten(1, 2)


def _blocks(whole: Rows, q: Tensor, buffers: int):
    """Cut the work into blocks of queries x (batch, kv_head) pairs; keys after a block's last query are never touched."""
    queries, pairs = q.shape[2], q.shape[0] * whole.kv_heads
    step = min(_QUERIES, queries)
    scratch = [q.new_empty(0) for _ in range(buffers)]
    for i0 in range(0, queries, step):
        i1 = min(queries, i0 + step)
        hi = i1 + whole.offset
        shape = (whole.groups * (i1 - i0), hi)
        chunk = max(1, min(pairs, _ELEMENTS // math.prod(shape)))
        if scratch[0].numel() < chunk * math.prod(shape):
            scratch = [q.new_empty(chunk * math.prod(shape)) for _ in range(buffers)]
        for first in range(0, pairs, chunk):
            last = min(pairs, first + chunk)
            views = [x[: (last - first) * math.prod(shape)].view(-1, *shape) for x in scratch]
            yield whole._replace(first=first, i0=i0), slice(first, last), slice(i0, i1), hi, views


def _row_passes(S: Tensor):
    """The passes fused into one loop where they run (a CPU), the plain ones elsewhere."""
    if S.device.type == "cpu":
        from edgewise.kernels import cpu as fused  # here, because numba takes a second to import

        return fused.forward, fused.backward
    return forward_rows, backward_rows


def _gate_rows(
    S: Tensor, lse: Tensor | None, rows: Rows
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | float]:
    """lse, P, E, M and u of a block's rows."""
    pair = torch.arange(rows.first, rows.first + S.shape[0], device=S.device)
    batch = (pair // rows.kv_heads)[:, None]
    group = torch.arange(rows.groups, device=S.device)
    head = (pair % rows.kv_heads)[:, None] * rows.groups + group  # [pairs, groups]
    i = slice(rows.i0, rows.i0 + S.shape[1] // rows.groups)
    seen = in_sight(i.stop - i.start, S.shape[2], None, S.device)[0].expand(1, rows.groups, -1, -1)
    if rows.mask is not None:
        seen = seen & rows.mask[batch % rows.mask.shape[0], head % rows.mask.shape[1], i, : S.shape[2]]
    seen = seen.flatten(1, 2)
    s = S.masked_fill(~seen, -torch.inf)
    if lse is None:
        lse = s.logsumexp(-1, keepdim=True)
        lse = lse.masked_fill(lse.isneginf(), 0.0)
    b = rows.b[head].repeat_interleave(i.stop - i.start, 1)[..., None]
    z = s - rows.kappa * lse + b
    if not rows.sinks:
        z = z.masked_fill(sink_edges(seen), -torch.inf)
    E = torch.exp(z.clamp(max=40.0))  # sigmoid(40) is 1; a square of exp(40) still fits in single precision
    if not rows.sample:
        return lse, torch.exp(s - lse), E, (z > 0).to(S.dtype), 0.5
    u = noise(rows.keys[:, batch, head, i].flatten(2), S.shape[2], S.dtype)
    return lse, torch.exp(s - lse), E, (u * (1 + E) > 1).to(S.dtype), u


def forward_rows(S: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """S [pairs, rows, keys] becomes M * P; gives lse, sum_j pi and sum_j M of each row, [pairs, rows]."""
    lse, P, E, M, _ = _gate_rows(S, None, rows)
    torch.mul(M, P, out=S)
    return lse[..., 0], (E / (1 + E)).sum(-1), M.sum(-1)


def backward_rows(S: Tensor, G: Tensor, lse: Tensor, D: Tensor, c: Tensor, rows: Rows) -> Tensor:
    """S becomes M * P, G = dO V^T becomes dS; gives sum_j dz of each row, [pairs, rows]."""
    _, P, E, M, u = _gate_rows(S, lse[..., None], rows)
    g_slope = u * E * (1 - u) / (1 - u + u * E) ** 2
    dz = P * g_slope * G + c[..., None] * E / (1 + E) ** 2
    sum_dz = dz.sum(-1)
    torch.mul(M, P, out=S)
    G.mul_(M).sub_(D[..., None]).mul_(P).add_(dz).sub_(rows.kappa * sum_dz[..., None] * P)
    return sum_dz
