"""The row passes of `rows.py`, each fused into one loop for a CPU.

As tensor operations, the element-wise work between the matrix products passes through memory some twenty times; here a row
is read once, stays in the first-level cache and is written once. The tests hold both implementations equal. float32 and
float64 share this code, which stays in one file: numba's cache of compiled code notices changes to that file only.

Rows are addressed as S[c, r, j]: c counts (sequence, key/value head) pairs from `first_pair`, r = g * Q + i runs over the
query heads g of that group and the Q queries of the block, j over keys.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba import njit, prange, types
from numba.extending import overload
from torch import Tensor

from edgewise.kernels.rows import RowBlock, RowGradients, RowPasses, RowSums

# Not "fast": NaN and infinity must come out as they went in. Only the order of sums is free, so that loops vectorise. For
# the same reason divisions below follow numpy: Python's check for zero would keep a loop scalar, and six times as slow.
_MATH = {"contract", "reassoc", "arcp", "nsz"}
_HIDDEN = -1e30  # stands for minus infinity; exp of it is exactly 0
_SATURATED = 40.0  # sigmoid(40) is 1 in double precision; a square of exp(40) still fits in single


def _exp(x):
    return math.exp(x)


@overload(_exp, jit_options={"fastmath": {"contract"}})
def _exp_by_type(x):
    """exp in double precision from libm; in single precision as 2^n times a polynomial, which vectorises (error < 2e-7)."""
    if x != types.float32:
        return lambda x: math.exp(x)

    def exp32(x):
        y = np.float32(88.0) if x > np.float32(88.0) else x  # in this order NaN stays NaN
        y = np.float32(-87.0) if y < np.float32(-87.0) else y
        # adding 1.5 * 2^23 rounds to the nearest integer n, which the last bits then hold
        shifted = y * np.float32(1.4426950408889634) + np.float32(12582912.0)
        n = shifted - np.float32(12582912.0)
        # ln 2 in two parts, so that y - n ln 2 loses no digits
        f = (y - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
        p = np.float32(0.0013836794532835484)  # minimax on |f| <= ln 2 / 2
        p = p * f + np.float32(0.008374856784939766)
        p = p * f + np.float32(0.041668228805065155)
        p = p * f + np.float32(0.16666419804096222)
        p = p * f + np.float32(0.49999991059303284)
        p = p * f + np.float32(1)
        p = p * f + np.float32(1)
        n_bits = np.int32(np.float32(shifted).view(np.int32) << np.int32(23))
        scaled = np.int32(np.float32(p).view(np.int32) + n_bits).view(np.float32)  # p * 2^n
        return np.float32(0) if x < np.float32(-87.0) else scaled

    return exp32


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with a cache of compiled code on disk; without one where no place for it can be written, as in a
    read-only installation without a home. Then each process compiles anew, for seconds; NUMBA_CACHE_DIR names a place."""

    def compile_(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:
            return njit(**options)(function)

    return compile_


@njit
def _mix(x):
    x = np.uint32(x ^ (x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x7FEB352D))
    return np.uint32(x ^ (x >> np.uint32(15)))


@njit
def _uniform(key0, key1, j):
    """u of (row, key j), in (0, 1): the same bits as `noise.uniform_noise`."""
    x = _mix(np.uint32(key0 + np.uint32(np.uint32(j) * np.uint32(0x9E3779B9))))
    x = np.uint32(np.uint32(x + key1) * np.uint32(0x846CA68B))
    x = np.uint32(x ^ (x >> np.uint32(16)))
    # 23 bits and a half, so that every value is exact in float32 and neither 0 nor 1
    return np.float32(np.int32(x >> np.uint32(9))) * np.float32(2.0**-23) + np.float32(2.0**-24)


def _row_max(s, n):
    return s[:n].max()


@overload(_row_max, inline="never")
def _row_max_by_type(s, n):
    """The largest of n numbers, NaN if there is one: as integers, since a maximum of floats stays a scalar loop."""
    bits, ones, float_ = (
        (np.int32, np.int32(0x7FFFFFFF), np.float32)
        if s.dtype == types.float32
        else (np.int64, np.int64(0x7FFFFFFFFFFFFFFF), np.float64)
    )
    sign = bits(31 if bits is np.int32 else 63)

    def row_max(s, n):
        x = s.view(bits)
        m = x[0] ^ ((x[0] >> sign) & ones)
        for j in range(1, n):
            m = max(m, x[j] ^ ((x[j] >> sign) & ones))
        return bits(m ^ ((m >> sign) & ones)).view(float_)

    return row_max


@njit
def _hide(s, n, visible):
    for j in range(n):
        if not visible[j]:
            s[j] = _HIDDEN


@njit
def _hide_before(s, start):
    for j in range(start):
        s[j] = _HIDDEN


@njit
def _pad_to_vectors(s, causal, J):
    """Hide keys up to a multiple of 32, where loops end: the scalar remainder of a vector loop dominates short rows."""
    end = min(J, -(-causal // 32) * 32)
    for j in range(causal, end):
        s[j] = _HIDDEN
    return end


@njit
def _sink(s, causal):
    """The first visible key, or -1 if it is the query's own position, the last visible one."""
    hidden = s.dtype.type(_HIDDEN)
    j, own = 0, causal - 1
    while j < own and s[j] == hidden:
        j += 1
    while j < own and s[own] == hidden:
        own -= 1
    return j if j < own else -1


class _Rows(NamedTuple):
    """A `RowBlock` in numba's types, in the order in which the kernels unpack it."""

    b: np.ndarray  # [heads]
    kappa: np.ndarray  # a scalar of the scores' precision
    noise_keys: np.ndarray  # [2, batch, heads, queries]
    sample: bool
    mask: np.ndarray  # [1 or batch, 1 or heads, queries, keys]
    has_mask: bool
    starts: np.ndarray  # [1 or batch, queries]
    has_starts: bool
    sinks: bool
    kv_heads: int
    groups: int
    offset: int
    first_pair: int
    first_query: int


@cached_njit(parallel=True, fastmath=_MATH, error_model="numpy")
def _forward_rows(S, lse, expected_edges, open_edges, rows):
    """S becomes M * P. Writes lse, sum_j pi and sum_j M of each row."""
    b, kappa, noise_keys, sample, mask, has_mask, starts, has_starts, sinks = rows[:9]
    kv_heads, groups, offset, first_pair, first_query = rows[9:]
    C, R, J = S.shape
    Q = R // groups
    real = S.dtype.type
    zero, one = real(0), real(1)
    for cr in prange(C * R):
        c, r = cr // R, cr % R
        pair = first_pair + c
        sequence, head, i = pair // kv_heads, (pair % kv_heads) * groups + r // Q, first_query + r % Q
        s = S[c, r]
        causal = min(J, i + offset + 1)
        if has_mask:
            _hide(s, causal, mask[sequence % mask.shape[0], head % mask.shape[1], i])
        if has_starts:
            _hide_before(s, min(causal, starts[sequence % starts.shape[0], i]))
        end = _pad_to_vectors(s, causal, J)
        m = _row_max(s, end)
        total = zero
        for j in range(end):
            total += _exp(s[j] - m)
        row_lse = m + math.log(total)
        if m == real(_HIDDEN):  # no visible key: a padded query
            row_lse = zero
        if not sinks:
            sink = _sink(s, causal)
            if sink >= 0:
                s[sink] = _HIDDEN  # from the gate, not from the softmax
        threshold = real(kappa * row_lse - b[head])  # z = s - threshold
        key0, key1 = np.uint32(0), np.uint32(0)
        if sample:
            key0 = np.uint32(noise_keys[0, sequence, head, i])
            key1 = np.uint32(noise_keys[1, sequence, head, i])
        row_edges, row_open = zero, zero
        for j in range(end):
            p, E = _exp(s[j] - row_lse), _exp(min(s[j] - threshold, real(_SATURATED)))
            u = real(_uniform(key0, key1, j))
            is_open = u * (one + E) > one if sample else s[j] > threshold
            open_ = one if is_open else zero
            row_edges += E / (one + E)
            row_open += open_
            s[j] = p * open_
        for j in range(end, J):
            s[j] = zero
        lse[c, r], expected_edges[c, r], open_edges[c, r] = row_lse, row_edges, row_open


@njit(fastmath=_MATH, error_model="numpy")
def _dz(p, E, u, G, c):
    """P g (1 - g) G, the straight-through gradient, and c pi (1 - pi), that of the expected edges."""
    one = type(p)(1)
    a, b = one - u + u * E, one + E
    inverse = one / (a * b)  # one division for both
    half_open, closed = inverse * b, inverse * a
    return p * G * (u * E * half_open) * ((one - u) * half_open) + c * (E * closed) * closed


@cached_njit(parallel=True, fastmath=_MATH, error_model="numpy")
def _backward_rows(S, G, lse, D, c_edges, sums_dz, rows):
    """S becomes M * P, G = dO V^T becomes dS; `sums_dz` receives sum_j dz of each row."""
    b, kappa, noise_keys, sample, mask, has_mask, starts, has_starts, sinks = rows[:9]
    kv_heads, groups, offset, first_pair, first_query = rows[9:]
    C, R, J = S.shape
    Q = R // groups
    real = S.dtype.type
    zero, one = real(0), real(1)
    slope = real(kappa)
    for cr in prange(C * R):
        c, r = cr // R, cr % R
        pair = first_pair + c
        sequence, head, i = pair // kv_heads, (pair % kv_heads) * groups + r // Q, first_query + r % Q
        s, g = S[c, r], G[c, r]
        causal = min(J, i + offset + 1)
        if has_mask:
            _hide(s, causal, mask[sequence % mask.shape[0], head % mask.shape[1], i])
        if has_starts:
            _hide_before(s, min(causal, starts[sequence % starts.shape[0], i]))
        end = _pad_to_vectors(s, causal, J)
        row_lse, row_D, row_c = lse[c, r], D[c, r], c_edges[c, r]
        threshold = real(kappa * row_lse - b[head])
        sink, p_sink = -1, zero
        if not sinks:
            sink = _sink(s, causal)
            if sink >= 0:
                p_sink = _exp(s[sink] - row_lse)
                s[sink] = _HIDDEN
        key0, key1 = np.uint32(0), np.uint32(0)
        if sample:
            key0 = np.uint32(noise_keys[0, sequence, head, i])
            key1 = np.uint32(noise_keys[1, sequence, head, i])
        sum_dz = zero
        for j in range(end):
            p, E = _exp(s[j] - row_lse), _exp(min(s[j] - threshold, real(_SATURATED)))
            u = real(_uniform(key0, key1, j)) if sample else real(0.5)
            is_open = u * (one + E) > one if sample else s[j] > threshold
            dz = _dz(p, E, u, g[j], row_c)
            sum_dz += dz
            g[j] = p * ((g[j] if is_open else zero) - row_D) + dz
            s[j] = p if is_open else -p  # the sign keeps M until the row's sum is known
        for j in range(end):
            g[j] -= slope * sum_dz * abs(s[j])
            s[j] = max(s[j], zero)
        if sink >= 0:  # M = 0 and dz = 0, but its score still moves the softmax of the other keys
            g[sink] = -p_sink * (row_D + slope * sum_dz)
        for j in range(end, J):
            s[j] = zero
            g[j] = zero
        sums_dz[c, r] = sum_dz


_NO_MASK = np.ones((1, 1, 1, 1), dtype=np.bool_)
_NO_STARTS = np.zeros((1, 1), dtype=np.int64)
_NO_NOISE = np.zeros((2, 1, 1, 1), dtype=np.int64)


def forward_rows(S: Tensor, block: RowBlock) -> RowSums:
    """`rows.forward_rows` in one loop."""
    lse, expected_edges, open_edges = (S.new_empty(S.shape[:2]) for _ in range(3))
    rows = tuple(_kernel_rows(S, block))
    _use_torchs_threads()
    _forward_rows(S.numpy(), lse.numpy(), expected_edges.numpy(), open_edges.numpy(), rows)
    return RowSums(lse, expected_edges, open_edges)


def backward_rows(S: Tensor, G: Tensor, gradients: RowGradients, block: RowBlock) -> Tensor:
    """`rows.backward_rows` in one loop."""
    sums_dz = S.new_empty(S.shape[:2])
    lse, D, c = (x.contiguous().numpy() for x in gradients)
    rows = tuple(_kernel_rows(S, block))
    _use_torchs_threads()
    _backward_rows(S.numpy(), G.numpy(), lse, D, c, sums_dz.numpy(), rows)
    return sums_dz


CPU_ROWS = RowPasses(forward_rows, backward_rows)


def _kernel_rows(S: Tensor, block: RowBlock) -> _Rows:
    spec = block.spec
    return _Rows(
        b=block.b.detach().clone().numpy(),  # a clone: numpy holds on to memory, which FSDP wants to free
        kappa=np.array(spec.kappa, dtype=S.numpy().dtype)[()],
        noise_keys=_NO_NOISE if block.noise_keys is None else block.noise_keys.numpy(),
        sample=block.noise_keys is not None,
        mask=_NO_MASK if spec.mask is None else spec.mask.numpy(),
        has_mask=spec.mask is not None,
        starts=_NO_STARTS if spec.starts is None else spec.starts.long().numpy(),
        has_starts=spec.starts is not None,
        sinks=spec.sinks,
        kv_heads=block.kv_heads,
        groups=block.groups,
        offset=block.offset,
        first_pair=block.first_pair,
        first_query=block.first_query,
    )


def _use_torchs_threads() -> None:
    _start_threads()
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # pyright: ignore


@cache
def _start_threads() -> None:
    """Start numba's thread pool, once, and restore torch's number of threads, which that resets."""
    threads = torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(threads)
