"""Row passes: the element-wise part of gated attention, on one block of score rows; here in plain PyTorch, for any device.

A block holds scores as S [pairs, rows, keys]. Pairs are (sequence, key/value head) pairs, counted from `first_pair`; rows
are the query heads that share this key/value head, times the queries of the block, counted from `first_query`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.kernels.equations import GateSpec, sink_edges, visible_keys
from edgewise.kernels.noise import uniform_noise


class RowBlock(NamedTuple):
    """Where a block lies in the batch, and the gate that applies to it."""

    b: Tensor  # [heads]
    spec: GateSpec
    noise_keys: Tensor | None  # [2, batch, heads, queries], when sampling
    kv_heads: int
    groups: int  # query heads per key/value head
    offset: int  # keys - queries: key index of the first query
    first_pair: int = 0
    first_query: int = 0


class RowSums(NamedTuple):
    """Results of the forward pass per row, each [pairs, rows]."""

    lse: Tensor
    expected_edges: Tensor  # sum_j pi
    open_edges: Tensor  # sum_j M


class RowGradients(NamedTuple):
    """What the backward pass needs per row, each [pairs, rows]."""

    lse: Tensor
    D: Tensor  # dO . O
    c: Tensor  # gradient at the expected number of open edges


class RowPasses(NamedTuple):
    """One implementation of the row passes."""

    forward: Callable[[Tensor, RowBlock], RowSums]
    """S becomes M * P."""
    backward: Callable[[Tensor, Tensor, RowGradients, RowBlock], Tensor]
    """S becomes M * P, G = dO V^T becomes dS; returns sum_j dz, [pairs, rows]."""


def forward_rows(S: Tensor, block: RowBlock) -> RowSums:
    """S [pairs, rows, keys] becomes M * P."""
    gates = _gates(S, None, block)
    torch.mul(gates.M, gates.P, out=S)
    return RowSums(gates.lse[..., 0], (gates.E / (1 + gates.E)).sum(-1), gates.M.sum(-1))


def backward_rows(S: Tensor, G: Tensor, gradients: RowGradients, block: RowBlock) -> Tensor:
    """S becomes M * P, G = dO V^T becomes dS; returns sum_j dz, [pairs, rows]."""
    _, P, E, M, u = _gates(S, gradients.lse[..., None], block)
    g_slope = u * E * (1 - u) / (1 - u + u * E) ** 2
    dz = P * g_slope * G + gradients.c[..., None] * E / (1 + E) ** 2
    sum_dz = dz.sum(-1)
    torch.mul(M, P, out=S)
    G.mul_(M).sub_(gradients.D[..., None]).mul_(P).add_(dz).sub_(block.spec.kappa * sum_dz[..., None] * P)
    return sum_dz


TORCH_ROWS = RowPasses(forward_rows, backward_rows)


class _Gates(NamedTuple):
    """The matrices of the equations, each [pairs, rows, keys]."""

    lse: Tensor  # [pairs, rows, 1]
    P: Tensor
    E: Tensor
    M: Tensor
    u: Tensor | float


def _gates(S: Tensor, lse: Tensor | None, block: RowBlock) -> _Gates:
    """P, E, M and u of a block; lse is computed in the forward pass and given in the backward pass."""
    spec, (n_pairs, n_rows, n_keys) = block.spec, S.shape
    pair = torch.arange(block.first_pair, block.first_pair + n_pairs, device=S.device)
    sequence = (pair // block.kv_heads)[:, None]
    group = torch.arange(block.groups, device=S.device)
    head = (pair % block.kv_heads)[:, None] * block.groups + group  # [pairs, groups]
    n_queries = n_rows // block.groups
    i = slice(block.first_query, block.first_query + n_queries)
    visible = visible_keys(n_queries, n_keys, None, S.device)[0].expand(1, block.groups, -1, -1)
    if spec.mask is not None:
        visible = visible & spec.mask[sequence % spec.mask.shape[0], head % spec.mask.shape[1], i, :n_keys]
    if spec.starts is not None:
        starts = spec.starts[sequence % spec.starts.shape[0], i]  # [pairs, 1, queries]
        visible = visible & (torch.arange(n_keys, device=S.device) >= starts[..., None])
    visible = visible.flatten(1, 2)
    s = S.masked_fill(~visible, -torch.inf)
    if lse is None:
        lse = s.logsumexp(-1, keepdim=True)
        lse = lse.masked_fill(lse.isneginf(), 0.0)
    b = block.b[head].repeat_interleave(n_queries, 1)[..., None]
    z = s - spec.kappa * lse + b
    if not spec.sinks:
        z = z.masked_fill(sink_edges(visible), -torch.inf)
    if spec.closed is not None:
        z = z.masked_fill(spec.closed[head].repeat_interleave(n_queries, 1)[..., None], -torch.inf)
    E = torch.exp(z.clamp(max=40.0))  # sigmoid(40) is 1; a square of exp(40) still fits in single precision
    P = torch.exp(s - lse)
    if block.noise_keys is None:
        return _Gates(lse, P, E, (z > 0).to(S.dtype), 0.5)
    u = uniform_noise(block.noise_keys[:, sequence, head, i].flatten(2), n_keys, S.dtype)
    return _Gates(lse, P, E, (u * (1 + E) > 1).to(S.dtype), u)
