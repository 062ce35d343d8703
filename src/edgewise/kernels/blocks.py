"""Blocked gated attention: forward and backward in blocks of queries, so that no queries x keys matrix outlives its block.

Matrix products are torch's; the element-wise work between them is done by a backend's row passes (`rows.py`, `cpu.py`).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.kernels.backend import Backend, Forward, Gradients, Inputs
from edgewise.kernels.closed_heads import OpenHeads, open_heads
from edgewise.kernels.equations import GateSpec
from edgewise.kernels.noise import noise_keys
from edgewise.kernels.one_query import forward_one_query
from edgewise.kernels.rows import RowBlock, RowGradients, RowPasses


class BlockSize(NamedTuple):
    """Upper bounds of a block."""

    queries: int = 64  # of a sequence of up to 1,024; more, where causal blocks waste less
    scores: int = 1 << 19  # 2 MB, which stay in the cache from the matrix product to the row pass
    few_keys: int = 256  # gradients of more keys are summed as [pairs, d, keys]

    def queries_of(self, queries: int) -> int:
        """Queries of a block, for a sequence of so many."""
        return min(queries, self.queries if queries <= 16 * self.queries else 2 * self.queries)


DEFAULT_SIZE = BlockSize()


def pairs_in_blocks(queries: int, keys: int, size: BlockSize = DEFAULT_SIZE) -> int:
    """(query, key) pairs of one head that are multiplied: each query with the keys up to its block's last query."""
    step = size.queries_of(queries)
    ends = [min(queries, i0 + step) for i0 in range(0, queries, step)]
    starts = [0, *ends[:-1]]
    return sum((i1 - i0) * (i1 + keys - queries) for i0, i1 in zip(starts, ends, strict=True))


def blocked_backend(row_passes: RowPasses, size: BlockSize = DEFAULT_SIZE) -> Backend:
    """Gated attention of tensors that share one precision, float32 or float64; closed heads are left out."""

    def forward(inputs: Inputs, spec: GateSpec) -> Forward:
        if inputs.q.shape[2] == 1 and spec.mode == "deterministic":
            return forward_one_query(inputs, spec)
        heads = open_heads(inputs, spec)
        return heads.scatter(
            _forward(heads.inputs, heads.spec, _noise(inputs, spec, heads), row_passes, size)
        )

    def backward(inputs: Inputs, spec: GateSpec, saved: Forward, dy: Tensor, dedges: Tensor) -> Gradients:
        heads = open_heads(inputs, spec)
        saved, noise = heads.gather(saved), _noise(inputs, spec, heads)
        dO, c = heads.select(dy), heads.select(dedges)
        return heads.scatter_gradients(
            _backward(heads.inputs, heads.spec, noise, saved, dO, c, row_passes, size)
        )

    return Backend(forward, backward)


def _noise(inputs: Inputs, spec: GateSpec, heads: OpenHeads) -> Tensor | None:
    """Noise keys of the open heads, [2, batch, open heads, queries]: a head's noise does not depend on the others."""
    if spec.mode != "sample":
        return None
    batch, n_heads, queries, _ = inputs.q.shape
    keys = noise_keys(spec.seed, (batch, n_heads, queries), inputs.q.device, spec.first_sequence)
    return heads.select(keys, dim=2)


def _forward(
    inputs: Inputs, spec: GateSpec, noise: Tensor | None, row_passes: RowPasses, size: BlockSize
) -> Forward:
    q, k, v, b = inputs
    batch, heads, queries, _ = q.shape
    if not heads:
        counts = q.new_zeros(3, batch, 0, queries).unbind()
        return Forward(
            q.new_zeros(batch, 0, queries, v.shape[-1]), counts[0][..., 0], counts[1][..., 0], counts[2]
        )
    batch_rows = _whole_batch(q, k, b, spec, noise)
    kv_heads, groups = batch_rows.kv_heads, batch_rows.groups
    Q, K, V = _by_kv_head(q, groups), k.flatten(0, 1), v.flatten(0, 1)
    O = q.new_empty(batch * kv_heads, groups, queries, v.shape[-1])
    sums = [q.new_empty(batch * kv_heads, groups, queries) for _ in range(3)]
    for rows, c, i, n_keys, (S,) in _blocks(batch_rows, q, size, buffers=1):
        S.baddbmm_(_rows_of(Q, c, i), K[c, :n_keys].mT, beta=0, alpha=spec.scale)
        block_sums = row_passes.forward(S, rows)  # S is now M * P
        _store_product(_Rows(O, c, i), S, V[c, :n_keys])
        for total, block_sum in zip(sums, block_sums, strict=True):
            total[c, :, i] = block_sum.unflatten(1, (groups, -1))
    lse, expected_edges, open_edges = (x.view(batch, heads, queries) for x in sums)
    return Forward(O.view(batch, heads, queries, -1), expected_edges.sum(-1), open_edges.sum(-1), lse)


def _backward(
    inputs: Inputs,
    spec: GateSpec,
    noise: Tensor | None,
    saved: Forward,
    dO: Tensor,
    dedges: Tensor,
    row_passes: RowPasses,
    size: BlockSize,
) -> Gradients:
    q, k, v, b = inputs
    batch, heads, queries, _ = q.shape
    if not heads:
        return Gradients(*map(torch.zeros_like, inputs))
    batch_rows = _whole_batch(q, k, b, spec, noise)
    kv_heads, groups = batch_rows.kv_heads, batch_rows.groups
    Q, K, V = _by_kv_head(q, groups), k.flatten(0, 1), v.flatten(0, 1)
    D = _by_kv_head((dO * saved.y).sum(-1, keepdim=True), groups)
    lse = saved.lse.view(batch * kv_heads, groups, queries)
    c_rows = _by_kv_head(dedges[..., None, None].expand(batch, heads, queries, 1), groups)
    dO = _by_kv_head(dO, groups)
    dQ, dK, dV = q.new_empty(Q.shape), _KeySums(K, size), _KeySums(V, size)
    db = q.new_empty(batch * kv_heads, groups, queries)
    for rows, c, i, n_keys, (S, G) in _blocks(batch_rows, q, size, buffers=2):
        q_rows, dO_rows = _rows_of(Q, c, i), _rows_of(dO, c, i)
        S.baddbmm_(q_rows, K[c, :n_keys].mT, beta=0, alpha=spec.scale)
        torch.bmm(dO_rows, V[c, :n_keys].mT, out=G)
        gradients = RowGradients(
            lse[c, :, i].flatten(1), _rows_of(D, c, i)[..., 0], _rows_of(c_rows, c, i)[..., 0]
        )
        sum_dz = row_passes.backward(S, G, gradients, rows)  # S is now M * P, G is dS
        dV.add(c, S, dO_rows)
        dK.add(c, G, q_rows, spec.scale)
        _store_product(_Rows(dQ, c, i), G, K[c, :n_keys], spec.scale)
        db[c, :, i] = sum_dz.unflatten(1, (groups, -1))
    return Gradients(
        dQ.view(q.shape),
        dK.total().view(k.shape),
        dV.total().view(v.shape),
        db.view(batch, heads, queries).sum((0, 2)),
    )


def _whole_batch(q: Tensor, k: Tensor, b: Tensor, spec: GateSpec, noise: Tensor | None) -> RowBlock:
    kv_heads = k.shape[1]
    return RowBlock(b, spec, noise, kv_heads, q.shape[1] // kv_heads, k.shape[2] - q.shape[2])


def _by_kv_head(x: Tensor, groups: int) -> Tensor:
    """[batch, heads, queries, d] -> [batch * kv_heads, groups, queries, d]: query heads grouped by key/value head."""
    return x.unflatten(1, (-1, groups)).flatten(0, 1)


def _rows_of(x: Tensor, c: slice, i: slice) -> Tensor:
    """One block's rows, [pairs, groups * queries, d]."""
    return x[c, :, i].flatten(1, 2)


class _Rows(NamedTuple):
    """One block's rows of a result."""

    result: Tensor  # [batch * kv_heads, groups, queries, d]
    c: slice
    i: slice


def _store_product(to: _Rows, a: Tensor, b: Tensor, factor: float = 1.0) -> None:
    """factor * a b, [pairs, groups * queries, d], into one block's rows; without a copy if groups is 1."""
    groups = to.result.shape[1]
    if groups == 1:
        to.result[to.c, 0, to.i].baddbmm_(a, b, beta=0, alpha=factor)
    else:
        product = a.new_empty(*a.shape[:2], b.shape[-1]).baddbmm_(a, b, beta=0, alpha=factor)
        to.result[to.c, :, to.i] = product.unflatten(1, (groups, -1))


class _KeySums:
    """A gradient of keys or values, [pairs, keys, d]: the sum over blocks of S^T x."""

    def __init__(self, like: Tensor, size: BlockSize) -> None:
        self.is_transposed = like.shape[1] > size.few_keys  # a tall and narrow result takes a third longer
        self.sums = like.new_zeros(like.mT.shape if self.is_transposed else like.shape)

    def add(self, c: slice, S: Tensor, x: Tensor, factor: float = 1.0) -> None:
        """S [pairs, rows, keys of the block], x [pairs, rows, d]."""
        n_keys = S.shape[-1]
        if self.is_transposed:
            self.sums[c, :, :n_keys].baddbmm_(x.mT, S, alpha=factor)
        else:
            self.sums[c, :n_keys].baddbmm_(S.mT, x, alpha=factor)

    def total(self) -> Tensor:
        if not self.is_transposed:
            return self.sums
        total = self.sums.new_empty(self.sums.mT.shape)
        for to, x in zip(total, self.sums, strict=True):  # faster than a batch of matrices at once
            to.copy_(x.T)
        return total


class _Block(NamedTuple):
    rows: RowBlock
    c: slice  # (sequence, key/value head) pairs
    i: slice  # queries
    n_keys: int  # keys up to the block's last query
    buffers: list[Tensor]  # scratch of the block's shape, [pairs, groups * queries, n_keys]


def _blocks(batch_rows: RowBlock, q: Tensor, size: BlockSize, buffers: int) -> Iterator[_Block]:
    """Iterate over blocks of queries x (sequence, key/value head) pairs; keys after a block's last query are skipped."""
    queries, pairs = q.shape[2], q.shape[0] * batch_rows.kv_heads
    step = size.queries_of(queries)
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
