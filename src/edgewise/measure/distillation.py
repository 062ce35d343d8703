"""Two models' predictions compared: KL divergence and both cross-entropies, from one pass over the logits.

Positions are taken a chunk at a time, so that no other tensor of the logits' size is made (the gradient of the KL excepted).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgewise.data.batch import IGNORE

_CHUNK_ELEMENTS = {"cpu": 1 << 18}  # 1 MB, which stays in the cache during the ten passes over a chunk
_CHUNK_ELEMENTS_ELSEWHERE = 1 << 24


class DistillationTerms(NamedTuple):
    """Sums over the positions that have a target, or a value for each position, in nats."""

    kl: Tensor  # KL(dense || twin)
    ce: Tensor  # of the twin
    dense_ce: Tensor


def distillation_terms(
    logits: Tensor,  # [batch, t, vocabulary]
    dense_logits: Tensor,  # [batch, t, vocabulary]
    targets: Tensor,  # int64 [batch, t]
    chunk_elements: int | None = None,
) -> DistillationTerms:  # each []; `kl` is differentiable in the twin's logits, the others have no gradient
    """Sum the terms over all positions.

    `chunk_elements`: logits per chunk, None for what suits the device.
    """
    flat = logits.flatten(0, 1), dense_logits.flatten(0, 1), targets.flatten()
    return DistillationTerms(*_FusedTerms.apply(*flat, _chunk_positions(logits, chunk_elements)))


@torch.no_grad()
def positionwise_terms(
    logits: Tensor,  # [batch, t, vocabulary]
    dense_logits: Tensor,  # [batch, t, vocabulary]
    targets: Tensor,  # int64 [batch, t]
) -> DistillationTerms:  # each [batch, t], 0 where there is no target
    """The terms of every position."""
    flat = logits.flatten(0, 1), dense_logits.flatten(0, 1), targets.flatten()
    chunks = [terms for _, terms, _, _ in _chunks(*flat, _chunk_positions(logits))]
    return DistillationTerms(*(torch.cat(parts).view_as(targets) for parts in zip(*chunks, strict=True)))


def _chunk_positions(logits: Tensor, elements: int | None = None) -> int:
    if elements is None:
        elements = _CHUNK_ELEMENTS.get(logits.device.type, _CHUNK_ELEMENTS_ELSEWHERE)
    return max(1, elements // logits.shape[-1])


def _chunks(
    logits: Tensor,  # [positions, vocabulary]
    dense_logits: Tensor,  # [positions, vocabulary]
    targets: Tensor,  # int64 [positions]
    chunk: int,
) -> Iterator[tuple[slice, DistillationTerms, Tensor, Tensor]]:
    """For each chunk of positions: its terms, [chunk] each; log-probabilities of the twin and probabilities of the dense
    model, [chunk, vocabulary]."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    for first in range(0, len(targets), chunk):
        positions = slice(first, first + chunk)
        has_target = (targets[positions] != IGNORE).to(dtype)
        log_q, log_p = (x[positions].to(dtype).log_softmax(-1) for x in (logits, dense_logits))
        p = log_p.exp()
        kl = (log_p - log_q).mul_(p).sum(-1) * has_target
        target = targets[positions, None].clamp(min=0)
        ce, dense_ce = (-x.gather(-1, target)[:, 0] * has_target for x in (log_q, log_p))
        yield positions, DistillationTerms(kl, ce, dense_ce), log_q, p


class _FusedTerms(torch.autograd.Function):
    """The only tensor of the logits' size that is kept is the gradient, p_twin - p_dense."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, dense_logits: Tensor, targets: Tensor, chunk: int):  # pyright: ignore
        dtype = torch.promote_types(logits.dtype, torch.float32)
        sums = torch.zeros(3, dtype=dtype, device=logits.device)
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        for positions, terms, log_q, p in _chunks(logits, dense_logits, targets, chunk):
            sums += torch.stack(terms).sum(-1)
            if gradient is not None:
                has_target = (targets[positions] != IGNORE).to(dtype)[:, None]
                gradient[positions] = log_q.exp_().sub_(p).mul_(has_target)
        ctx.gradient = gradient
        kl, ce, dense_ce = sums
        ctx.mark_non_differentiable(ce, dense_ce)
        return kl, ce, dense_ce

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_kl: Tensor, *_: Any):  # pyright: ignore
        gradient, ctx.gradient = ctx.gradient, None  # in place: it is as large as the logits
        return gradient.mul_(grad_kl), None, None, None
