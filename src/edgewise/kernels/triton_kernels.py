"""Gated attention on a GPU, flash style: the equations in tiles of queries x keys, none of which is kept.

Names are those of `equations.py`. A program of `forward_kernel` and `query_gradients_kernel` has one tile of BLOCK_M queries
and passes over its keys, BLOCK_N at a time, twice: lse (or sum_j dz) must be known before z (or dS) is. A program of
`key_gradients_kernel` has one tile of keys and passes over the queries of all heads that read them, in transposed tiles: so
i, j and whatever belongs to a row come as vectors of the shape [M, 1] and [1, N], or [1, M] and [N, 1].

Keys that a query sees lie between its entry of `starts` and its own position; `mask` hides more, if there is one.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
import triton.language as tl
from triton import jit


@jit
def _mix(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    return x ^ (x >> 15)


@jit
def _seed_words(seed):
    """The two 32-bit words of splitmix64(seed): `noise.noise_keys`."""
    z = tl.load(seed).to(tl.uint64) + 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return z.to(tl.uint32), (z >> 32).to(tl.uint32)


@jit
def _row_key(row, word):
    return _mix(_mix(row * 0x9E3779B9 + word) * 0x846CA68B)


@jit
def _uniform(key0, key1, j):
    """u of a tile, in (0, 1): the same bits as `noise.uniform_noise`."""
    x = _mix(key0 + j.to(tl.uint32) * 0x9E3779B9)
    x = (x + key1) * 0x846CA68B
    x = x ^ (x >> 16)
    return (x >> 9).to(tl.float32) * 1.1920928955078125e-07 + 5.960464477539063e-08  # 2^-23, 2^-24


@jit
def _tile(x, rows, stride, n_rows, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows of a matrix with D columns, 0 outside: [rows, BLOCK_D]."""
    d = tl.arange(0, BLOCK_D)
    inside = (rows < n_rows)[:, None] & (d < D)[None, :]
    return tl.load(x + rows[:, None] * stride + d[None, :], mask=inside, other=0.0)


@jit
def _store_tile(x, value, rows, stride, n_rows, D: tl.constexpr, BLOCK_D: tl.constexpr):
    d = tl.arange(0, BLOCK_D)
    inside = (rows < n_rows)[:, None] & (d < D)[None, :]
    tl.store(x + rows[:, None] * stride + d[None, :], value.to(x.dtype.element_ty), mask=inside)


@jit
def _hide(s, i, j, i0, start, mask, queries, keys):
    """Minus infinity where a key is not visible; `i0`: the tile's first query, so that offsets from there fit 32 bits."""
    visible = (j >= start) & (j <= i + keys - queries) & (i < queries)
    if mask is not None:
        rows = mask + tl.cast(i0, tl.int64) * keys
        visible = visible & (tl.load(rows + ((i - i0) * keys + j), mask=visible, other=0) != 0)
    return tl.where(visible, s, float("-inf"))


@jit
def _gates(s, lse, j, b, sink, key0, key1, KAPPA: tl.constexpr, SINKS: tl.constexpr, SAMPLE: tl.constexpr):
    """P, E, M and u of a tile of scores."""
    P = tl.exp(s - lse)
    z = s + b
    if KAPPA != 0:  # 0 * lse would keep lse in registers
        z = s - KAPPA * lse + b
    if not SINKS:
        z = tl.where(j == sink, float("-inf"), z)
    E = tl.exp(tl.minimum(z, 40.0))  # sigmoid(40) is 1; a square of exp(40) still fits in single precision
    u = tl.full(s.shape, 0.5, s.dtype)
    if SAMPLE:
        u = _uniform(key0, key1, j).to(s.dtype)
        M = (u * (1 + E) > 1).to(s.dtype)
    else:
        M = (z > 0).to(s.dtype)
    return P, E, M, u


@jit
def _dz(P, E, u, G, c):
    """P g (1 - g) G, the straight-through gradient, and c pi (1 - pi), that of the expected edges."""
    half_open = 1 / (1 - u + u * E)
    closed = 1 / (1 + E)
    return P * G * (u * E * half_open) * ((1 - u) * half_open) + c * (E * closed) * closed


@jit
def _first_keys(starts, batch, stride, i, queries, keys):
    """First visible key of queries; beyond the last key for queries outside."""
    start = tl.zeros_like(i)
    if starts is not None:
        start = tl.load(starts + batch * stride + i, mask=i < queries, other=0)
    return tl.where(i < queries, start, keys)


@jit
def _sink_keys(sinks, batch, head, batch_stride, head_stride, i, queries, SINKS: tl.constexpr):
    """Key of each query's edge to the first visible key, -1 if there is none."""
    sink = tl.full(i.shape, -1, tl.int32)
    if not SINKS:
        sink = tl.load(sinks + batch * batch_stride + head * head_stride + i, mask=i < queries, other=-1)
    return sink


@jit
def _noise_rows(seed, row, SAMPLE: tl.constexpr):
    """Both noise keys of queries, counted over sequences and heads."""
    key0 = row.to(tl.uint32)
    key1 = key0
    if SAMPLE:
        word0, word1 = _seed_words(seed)
        key0, key1 = _row_key(key0, word0), _row_key(key1, word1)
    return key0, key1


@jit
def forward_kernel(
    q, k, v, b, y, lse, expected_edges, open_edges, starts, sinks, mask, closed, seed,  # tensors
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,  # strides
    starts_batch, sinks_batch, sinks_head, mask_batch, mask_head,
    heads, queries, keys, first_sequence, GROUPS: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr,
    SCALE: tl.constexpr, KAPPA: tl.constexpr, SINKS: tl.constexpr, SAMPLE: tl.constexpr,
    REAL: tl.constexpr, PRECISION: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """y, and lse, expected and open edges of each query."""
    i0 = tl.program_id(0) * BLOCK_M
    i = i0 + tl.arange(0, BLOCK_M)
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    K, V = k + batch * k_batch + head // GROUPS * k_head, v + batch * v_batch + head // GROUPS * v_head
    if mask is not None:
        mask += batch * mask_batch + head * mask_head
    start = _first_keys(starts, batch, starts_batch, i, queries, keys)
    sink = _sink_keys(sinks, batch, head, sinks_batch, sinks_head, i, queries, SINKS)[:, None]
    key0, key1 = _noise_rows(seed, ((first_sequence + batch) * heads + head) * queries + i, SAMPLE)
    key0, key1 = key0[:, None], key1[:, None]
    b_head = tl.load(b + head).to(REAL)
    first = tl.min(start, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(keys, (tl.program_id(0) + 1) * BLOCK_M + keys - queries)
    if closed is not None:
        end = tl.where(tl.load(closed + head) != 0, first, end)
    Q = _tile(q + batch * q_batch + head * q_head, i, q_row, queries, D, BLOCK_D)

    m = tl.full([BLOCK_M], float("-inf"), REAL)
    total = tl.zeros([BLOCK_M], REAL)
    for j0 in range(first, end, BLOCK_N):
        j = j0 + tl.arange(0, BLOCK_N)
        K_tile = _tile(K, j, k_row, keys, D, BLOCK_D)
        s = tl.dot(Q, tl.trans(K_tile), input_precision=PRECISION, out_dtype=REAL) * SCALE
        s = _hide(s, i[:, None], j[None, :], i0, start[:, None], mask, queries, keys)
        larger = tl.maximum(m, tl.max(s, 1))
        origin = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp(m - origin) + tl.sum(tl.exp(s - origin[:, None]), 1)
        m = larger
    row_lse = tl.where(
        total == 0, 0.0, m + tl.log(tl.where(total == 0, 1.0, total))
    )  # 0: no visible key, a padded query

    O = tl.zeros([BLOCK_M, BLOCK_DV], REAL)
    row_edges = tl.zeros([BLOCK_M], REAL)
    row_open = tl.zeros([BLOCK_M], REAL)
    for j0 in range(first, end, BLOCK_N):
        j = j0 + tl.arange(0, BLOCK_N)
        K_tile = _tile(K, j, k_row, keys, D, BLOCK_D)
        V_tile = _tile(V, j, v_row, keys, D_V, BLOCK_DV)
        s = tl.dot(Q, tl.trans(K_tile), input_precision=PRECISION, out_dtype=REAL) * SCALE
        s = _hide(s, i[:, None], j[None, :], i0, start[:, None], mask, queries, keys)
        P, E, M, _u = _gates(s, row_lse[:, None], j[None, :], b_head, sink, key0, key1, KAPPA, SINKS, SAMPLE)
        row_edges += tl.sum(E / (1 + E), 1)
        row_open += tl.sum(M, 1)
        O += tl.dot((M * P).to(V_tile.dtype), V_tile, input_precision=PRECISION, out_dtype=REAL)
    row = (batch * heads + head) * queries
    _store_tile(y + row * D_V, O, i, D_V, queries, D_V, BLOCK_DV)
    tl.store(lse + row + i, row_lse, mask=i < queries)
    tl.store(expected_edges + row + i, row_edges, mask=i < queries)
    tl.store(open_edges + row + i, row_open, mask=i < queries)


@jit
def query_gradients_kernel(
    q, k, v, b, y, lse, dy, dedges, dq, rows_D, sums_dz, starts, sinks, mask, closed, seed,  # tensors
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, dy_batch, dy_head, dy_row,  # strides
    starts_batch, sinks_batch, sinks_head, mask_batch, mask_head,
    heads, queries, keys, first_sequence, GROUPS: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr,
    SCALE: tl.constexpr, KAPPA: tl.constexpr, SINKS: tl.constexpr, SAMPLE: tl.constexpr,
    REAL: tl.constexpr, PRECISION: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dQ, and D = dO . O and sum_j dz of each query."""
    i0 = tl.program_id(0) * BLOCK_M
    i = i0 + tl.arange(0, BLOCK_M)
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    K, V = k + batch * k_batch + head // GROUPS * k_head, v + batch * v_batch + head // GROUPS * v_head
    if mask is not None:
        mask += batch * mask_batch + head * mask_head
    start = _first_keys(starts, batch, starts_batch, i, queries, keys)
    sink = _sink_keys(sinks, batch, head, sinks_batch, sinks_head, i, queries, SINKS)[:, None]
    key0, key1 = _noise_rows(seed, ((first_sequence + batch) * heads + head) * queries + i, SAMPLE)
    key0, key1 = key0[:, None], key1[:, None]
    b_head = tl.load(b + head).to(REAL)
    first = tl.min(start, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(keys, (tl.program_id(0) + 1) * BLOCK_M + keys - queries)
    if closed is not None:
        end = tl.where(tl.load(closed + head) != 0, first, end)
    row = (batch * heads + head) * queries
    row_lse = tl.load(lse + row + i, mask=i < queries, other=0.0)[:, None]
    c = tl.load(dedges + batch * heads + head).to(REAL)
    Q = _tile(q + batch * q_batch + head * q_head, i, q_row, queries, D, BLOCK_D)
    dO = _tile(dy + batch * dy_batch + head * dy_head, i, dy_row, queries, D_V, BLOCK_DV)
    O = _tile(y + row * D_V, i, D_V, queries, D_V, BLOCK_DV)
    row_D = tl.sum(dO.to(REAL) * O.to(REAL), 1)

    sum_dz = tl.zeros([BLOCK_M], REAL)
    if KAPPA != 0:
        for j0 in range(first, end, BLOCK_N):
            j = j0 + tl.arange(0, BLOCK_N)
            K_tile = _tile(K, j, k_row, keys, D, BLOCK_D)
            V_tile = _tile(V, j, v_row, keys, D_V, BLOCK_DV)
            s = tl.dot(Q, tl.trans(K_tile), input_precision=PRECISION, out_dtype=REAL) * SCALE
            G = tl.dot(dO, tl.trans(V_tile), input_precision=PRECISION, out_dtype=REAL)
            s = _hide(s, i[:, None], j[None, :], i0, start[:, None], mask, queries, keys)
            P, E, M, u = _gates(s, row_lse, j[None, :], b_head, sink, key0, key1, KAPPA, SINKS, SAMPLE)
            sum_dz += tl.sum(_dz(P, E, u, G, c), 1)
    slope = KAPPA * sum_dz[:, None]

    dQ = tl.zeros([BLOCK_M, BLOCK_D], REAL)
    for j0 in range(first, end, BLOCK_N):
        j = j0 + tl.arange(0, BLOCK_N)
        K_tile = _tile(K, j, k_row, keys, D, BLOCK_D)
        V_tile = _tile(V, j, v_row, keys, D_V, BLOCK_DV)
        s = tl.dot(Q, tl.trans(K_tile), input_precision=PRECISION, out_dtype=REAL) * SCALE
        G = tl.dot(dO, tl.trans(V_tile), input_precision=PRECISION, out_dtype=REAL)
        s = _hide(s, i[:, None], j[None, :], i0, start[:, None], mask, queries, keys)
        P, E, M, u = _gates(s, row_lse, j[None, :], b_head, sink, key0, key1, KAPPA, SINKS, SAMPLE)
        dz = _dz(P, E, u, G, c)
        if KAPPA == 0:
            sum_dz += tl.sum(dz, 1)
        dS = P * (M * G - row_D[:, None] - slope) + dz
        dQ += tl.dot(dS.to(K_tile.dtype), K_tile, input_precision=PRECISION, out_dtype=REAL)
    _store_tile(dq + row * D, dQ * SCALE, i, D, queries, D, BLOCK_D)
    tl.store(rows_D + row + i, row_D, mask=i < queries)
    tl.store(sums_dz + row + i, sum_dz, mask=i < queries)


@jit
def key_gradients_kernel(
    q, k, v, b, lse, dy, dedges, rows_D, sums_dz, dk, dv, ends, starts, sinks, mask, closed, seed,  # tensors
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, dy_batch, dy_head, dy_row,  # strides
    ends_batch, starts_batch, sinks_batch, sinks_head, mask_batch, mask_head,
    heads, queries, keys, first_sequence, GROUPS: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr,
    SCALE: tl.constexpr, KAPPA: tl.constexpr, SINKS: tl.constexpr, SAMPLE: tl.constexpr,
    REAL: tl.constexpr, PRECISION: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dK and dV, summed over the heads that share them; `ends`: one after the last query that sees a tile of keys."""
    j = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    kv_heads = heads // GROUPS
    batch, kv_head = (tl.program_id(1) // kv_heads).to(tl.int64), tl.program_id(1) % kv_heads
    K_tile = _tile(k + batch * k_batch + kv_head * k_head, j, k_row, keys, D, BLOCK_D)
    V_tile = _tile(v + batch * v_batch + kv_head * v_head, j, v_row, keys, D_V, BLOCK_DV)
    first = tl.maximum(0, tl.program_id(0) * BLOCK_N - (keys - queries)) // BLOCK_M * BLOCK_M
    last = queries
    if ends is not None:
        last = tl.load(ends + batch * ends_batch + tl.program_id(0))
    dK = tl.zeros([BLOCK_N, BLOCK_D], REAL)
    dV = tl.zeros([BLOCK_N, BLOCK_DV], REAL)
    for group in range(GROUPS):
        head = kv_head * GROUPS + group
        end = last
        if closed is not None:
            end = tl.where(tl.load(closed + head) != 0, first, last)
        b_head = tl.load(b + head).to(REAL)
        c = tl.load(dedges + batch * heads + head).to(REAL)
        row = (batch * heads + head) * queries
        head_mask = mask
        if mask is not None:
            head_mask = mask + batch * mask_batch + head * mask_head
        for i0 in range(first, end, BLOCK_M):
            i = i0 + tl.arange(0, BLOCK_M)
            Q = _tile(q + batch * q_batch + head * q_head, i, q_row, queries, D, BLOCK_D)
            dO = _tile(dy + batch * dy_batch + head * dy_head, i, dy_row, queries, D_V, BLOCK_DV)
            row_lse = tl.load(lse + row + i, mask=i < queries, other=0.0)[None, :]
            row_D = tl.load(rows_D + row + i, mask=i < queries, other=0.0)[None, :]
            slope = tl.zeros([1, BLOCK_M], REAL)
            if KAPPA != 0:
                slope = KAPPA * tl.load(sums_dz + row + i, mask=i < queries, other=0.0)[None, :]
            start = _first_keys(starts, batch, starts_batch, i, queries, keys)[None, :]
            sink = _sink_keys(sinks, batch, head, sinks_batch, sinks_head, i, queries, SINKS)[None, :]
            noise_row = ((first_sequence + batch) * heads + head) * queries + i
            key0, key1 = _noise_rows(seed, noise_row, SAMPLE)
            key0, key1 = key0[None, :], key1[None, :]
            s = tl.dot(K_tile, tl.trans(Q), input_precision=PRECISION, out_dtype=REAL) * SCALE
            s = _hide(s, i[None, :], j[:, None], i0, start, head_mask, queries, keys)
            P, E, M, u = _gates(s, row_lse, j[:, None], b_head, sink, key0, key1, KAPPA, SINKS, SAMPLE)
            dV += tl.dot((M * P).to(dO.dtype), dO, input_precision=PRECISION, out_dtype=REAL)
            G = tl.dot(V_tile, tl.trans(dO), input_precision=PRECISION, out_dtype=REAL)
            dS = P * (M * G - row_D - slope) + _dz(P, E, u, G, c)
            dK += tl.dot(dS.to(Q.dtype), Q, input_precision=PRECISION, out_dtype=REAL)
    row = (batch * kv_heads + kv_head) * keys
    _store_tile(dk + row * D, dK * SCALE, j, D, keys, D, BLOCK_D)
    _store_tile(dv + row * D_V, dV, j, D_V, keys, D_V, BLOCK_DV)
