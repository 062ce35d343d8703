"""Blocked gated attention: forward and backward in blocks of queries, so that no queries x keys matrix outlives its block.

Matrix products are torch's; the element-wise work between them is done by a backend's row passes (`rows.py`, `cpu.py`).
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgewise.kernels.equations import AttentionOutput, GateSpec
from edgewise.kernels.noise import noise_keys
from edgewise.kernels.rows import RowBlock, RowGradients, RowPasses


class BlockSize(NamedTuple):
    """Upper bounds of a block."""

    queries: int = 64
    scores: int = 1 << 20  # 4 MB, which stay in the cache from the matrix product to the row pass


DEFAULT_SIZE = BlockSize()


def blocked_attention(
    q: Tensor,  # [batch, heads, queries, d]
    k: Tensor,  # [batch, kv_heads, keys, d]
    v: Tensor,  # [batch, kv_heads, keys, d_v]
    b: Tensor,  # [heads]
    spec: GateSpec,
    row_passes: RowPasses,
    block_size: BlockSize = DEFAULT_SIZE,
) -> AttentionOutput:
    """Gated attention of tensors that share one precision, float32 or float64."""
    return AttentionOutput(*_BlockedAttention.apply(q, k, v, b, spec, row_passes, block_size))


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, b, spec, row_passes, block_size):  # pyright: ignore
        batch, heads, queries, _ = q.shape
        noise = noise_keys(spec.seed, (batch, heads, queries), q.device, spec.first_sequence)
        batch_rows = _whole_batch(q, k, b, spec, noise)
        kv_heads, groups = batch_rows.kv_heads, batch_rows.groups
        Q, K, V = _by_kv_head(q, groups) * spec.scale, k.flatten(0, 1), v.flatten(0, 1)
        O = q.new_empty(batch * kv_heads, groups, queries, v.shape[-1])
        sums = [q.new_empty(batch * kv_heads, groups, queries) for _ in range(3)]
        for rows, c, i, n_keys, (S,) in _blocks(batch_rows, q, block_size, buffers=1):
            torch.bmm(_rows_of(Q, c, i), K[c, :n_keys].mT, out=S)
            block_sums = row_passes.forward(S, rows)  # S is now M * P
            O[c, :, i] = torch.bmm(S, V[c, :n_keys]).unflatten(1, (groups, -1))
            for total, block_sum in zip(sums, block_sums, strict=True):
                total[c, :, i] = block_sum.unflatten(1, (groups, -1))
        lse, expected_edges, open_edges = sums
        O = O.view(batch, heads, queries, -1)
        ctx.save_for_backward(q, k, v, b, O, lse, noise, spec.mask)
        ctx.spec, ctx.row_passes, ctx.block_size = spec._replace(mask=None), row_passes, block_size
        open_edges = open_edges.view(batch, heads, queries).sum(-1)
        ctx.mark_non_differentiable(open_edges)
        return O, expected_edges.view(batch, heads, queries).sum(-1), open_edges

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dO, dedges, _):  # pyright: ignore
        with torch.autocast(dO.device.type, enabled=False):
            return *_backward(ctx, dO, dedges), None, None, None


def _backward(ctx: Any, dO: Tensor, dedges: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv and db."""
    q, k, v, b, O, lse, noise, mask = ctx.saved_tensors
    spec = ctx.spec._replace(mask=mask)
    batch_rows = _whole_batch(q, k, b, spec, noise)
    batch, heads, queries, _ = q.shape
    kv_heads, groups = batch_rows.kv_heads, batch_rows.groups
    Q, K, V = _by_kv_head(q, groups) * spec.scale, k.flatten(0, 1), v.flatten(0, 1)
    D = _by_kv_head((dO * O).sum(-1, keepdim=True), groups)
    c_rows = _by_kv_head(dedges[..., None, None].expand(batch, heads, queries, 1), groups)
    dO = _by_kv_head(dO, groups)
    dQ, dK, dV = torch.empty_like(Q), torch.zeros_like(K), torch.zeros_like(V)
    db = q.new_empty(batch * kv_heads, groups, queries)
    for rows, c, i, n_keys, (S, G) in _blocks(batch_rows, q, ctx.block_size, buffers=2):
        q_rows, dO_rows = _rows_of(Q, c, i), _rows_of(dO, c, i)
        torch.bmm(q_rows, K[c, :n_keys].mT, out=S)
        torch.bmm(dO_rows, V[c, :n_keys].mT, out=G)
        gradients = RowGradients(
            lse[c, :, i].flatten(1), _rows_of(D, c, i)[..., 0], _rows_of(c_rows, c, i)[..., 0]
        )
        sum_dz = ctx.row_passes.backward(S, G, gradients, rows)  # S is now M * P, G is dS
        dV[c, :n_keys].baddbmm_(S.mT, dO_rows)
        dK[c, :n_keys].baddbmm_(G.mT, q_rows)
        dQ[c, :, i] = torch.bmm(G, K[c, :n_keys]).unflatten(1, (groups, -1))
        db[c, :, i] = sum_dz.unflatten(1, (groups, -1))
    dQ.mul_(spec.scale)
    return dQ.view_as(q), dK.view_as(k), dV.view_as(v), db.view(batch, heads, queries).sum((0, 2))


def _whole_batch(q: Tensor, k: Tensor, b: Tensor, spec: GateSpec, noise: Tensor) -> RowBlock:
    kv_heads = k.shape[1]
    return RowBlock(b, spec, noise, kv_heads, q.shape[1] // kv_heads, k.shape[2] - q.shape[2])


def _by_kv_head(x: Tensor, groups: int) -> Tensor:
    """[batch, heads, queries, d] -> [batch * kv_heads, groups, queries, d]: query heads grouped by key/value head."""
    return x.unflatten(1, (-1, groups)).flatten(0, 1)


def _rows_of(x: Tensor, c: slice, i: slice) -> Tensor:
    """One block's rows, [pairs, groups * queries, d]."""
    return x[c, :, i].flatten(1, 2)


class _Block(NamedTuple):
    rows: RowBlock
    c: slice  # (sequence, key/value head) pairs
    i: slice  # queries
    n_keys: int  # keys up to the block's last query
    buffers: list[Tensor]  # scratch of the block's shape, [pairs, groups * queries, n_keys]


def _blocks(batch_rows: RowBlock, q: Tensor, size: BlockSize, buffers: int) -> Iterator[_Block]:
    """Iterate over blocks of queries x (sequence, key/value head) pairs; keys after a block's last query are skipped."""
    queries, pairs = q.shape[2], q.shape[0] * batch_rows.kv_heads
    step = min(size.queries, queries)
    scratch = [q.new_empty(0) for _ in range(buffers)]
    for i0 in range(0, queries, step):
        i1 = min(queries, i0 + step)
        n_keys = i1 + batch_rows.offset
        shape = (batch_rows.groups * (i1 - i0), n_keys)
        chunk = max(1, min(pairs, size.scores // math.prod(shape)))
        if scratch[0].numel() < chunk * math.prod(shape):
            scratch = [q.new_empty(chunk * math.prod(shape)) for _ in range(buffers)]
        for first in range(0, pairs, chunk):
            last = min(pairs, first + chunk)
            views = [x[: (last - first) * math.prod(shape)].view(-1, *shape) for x in scratch]
            rows = batch_rows._replace(first_pair=first, first_query=i0)
            yield _Block(rows, slice(first, last), slice(i0, i1), n_keys, views)
