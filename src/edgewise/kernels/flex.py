"""Gated attention for inference by torch's FlexAttention: two calls of a kernel that is not ours.

The first call gives lse over all visible keys, the second attends to open edges only, with scores of the others at minus
infinity. Flex renormalises, which the gate must not:

    y = y_open * exp(lse_open - lse),   lse_open = logsumexp of the open edges' scores

so that with a null value y = y_open * w + (1 - w) r, w the open mass. Edges are counted, when asked for, by further calls:
the logsumexp of zeros over n edges is log n.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from edgewise.core.errors import EdgewiseError
from edgewise.kernels.backend import Backend, Forward, Inputs, sink_keys
from edgewise.kernels.equations import GateSpec

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Attend = Callable[..., tuple[Tensor, Tensor]]
"""(q, k, v, score_mod, scale) -> y, lse in natural logarithms."""


def flex_backend(attend: Attend | None = None) -> Backend:
    """Deterministic gates without gradients; `attend` is FlexAttention, compiled where that pays."""

    def forward(inputs: Inputs, spec: GateSpec) -> Forward:
        return _forward(inputs, spec, attend or attend_by_flex)

    return Backend(forward, None, takes_half=True)


def attend_by_flex(
    q: Tensor, k: Tensor, v: Tensor, score_mod: ScoreMod, scale: float
) -> tuple[Tensor, Tensor]:
    """y and lse of FlexAttention, after a check that its lse is a natural logarithm."""
    function = _compiled(q.device.type)
    check_natural_lse(function, q.device, q.dtype)
    return _call(function, q, k, v, score_mod, scale)


@cache
def _compiled(device_type: str) -> Callable:
    from torch.nn.attention.flex_attention import flex_attention  # imports the compiler, which takes seconds

    return torch.compile(flex_attention, dynamic=True) if device_type == "cuda" else flex_attention


def _call(function: Callable, q: Tensor, k: Tensor, v: Tensor, score_mod: ScoreMod, scale: float):
    try:
        from torch.nn.attention.flex_attention import AuxRequest
    except ImportError as error:
        raise EdgewiseError("the backend 'flex' needs torch 2.9 or later; leave `backend` at None") from error
    gqa = q.shape[1] != k.shape[1]
    y, aux = function(q, k, v, score_mod, scale=scale, enable_gqa=gqa, return_aux=AuxRequest(lse=True))
    return y, aux.lse


_checked: set[tuple[Callable, torch.device, torch.dtype]] = set()


def check_natural_lse(function: Callable, device: torch.device, dtype: torch.dtype) -> None:
    """Raise an error if a FlexAttention returns a scaled lse, as its FLASH backend once did, by ln 2 (pytorch#181645)."""
    if (function, device, dtype) in _checked:
        return
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 128, 64, generator=draw).to(device, dtype) for _ in range(3))
    _, lse = _call(function, q, k, v, lambda s, *_: s, 0.125)
    expected = (q.float() @ k.float().mT * 0.125).logsumexp(-1)
    difference = (lse.float() - expected).abs().max().item()
    if not difference < 0.05:
        raise EdgewiseError(
            f"FlexAttention on {device} returns a logsumexp that is off by {difference:.2g}: "
            "update torch, or use another backend"
        )
    _checked.add((function, device, dtype))


def _forward(inputs: Inputs, spec: GateSpec, attend: Attend) -> Forward:
    if spec.mode != "deterministic":
        raise EdgewiseError("the backend 'flex' computes deterministic gates only, not mode 'sample'")
    q, k, v, b = (x.detach() for x in inputs)  # on a CPU Flex refuses what requires gradients
    is_visible = _visible(inputs, spec)
    is_allowed = _allowed(inputs, spec)

    def hidden_unless_visible(s: Tensor, *index: Tensor) -> Tensor:
        return torch.where(is_visible(*index), s, -math.inf)

    _, lse = attend(q, k, v, hidden_unless_visible, spec.scale)
    lse = lse.masked_fill(lse.isneginf(), 0.0)  # a padded query
    threshold = (spec.kappa * lse - b[:, None]).contiguous()

    def is_open(s: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        above = s > threshold[batch, head, i]
        return above & is_visible(batch, head, i, j) & is_allowed(batch, head, i, j)

    def hidden_unless_open(s: Tensor, *index: Tensor) -> Tensor:
        return torch.where(is_open(s, *index), s, -math.inf)

    y, lse_open = attend(q, k, v, hidden_unless_open, spec.scale)
    y = y * torch.exp(lse_open - lse).to(y.dtype)[..., None]
    if not spec.counts:
        unknown = torch.full(q.shape[:2], torch.nan, dtype=lse.dtype, device=q.device)
        return Forward(y, unknown, unknown.clone(), lse)

    def zero_if_open(s: Tensor, *index: Tensor) -> Tensor:
        return torch.where(is_open(s, *index), 0.0, -math.inf).to(s.dtype)

    def log_probability(s: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        possible = is_visible(batch, head, i, j) & is_allowed(batch, head, i, j)
        return torch.where(possible, -torch.log1p(torch.exp(threshold[batch, head, i] - s)), -math.inf)

    expected, opened = (
        attend(q, k, v, score_mod, spec.scale)[1].exp().sum(-1)
        for score_mod in (log_probability, zero_if_open)
    )
    return Forward(y, expected, opened.round(), lse)


def _visible(inputs: Inputs, spec: GateSpec) -> MaskMod:
    """Causal, and what `starts` and `mask` hide."""
    offset, starts, mask = inputs.k.shape[2] - inputs.q.shape[2], spec.starts, spec.mask

    def visible(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        result = j <= i + offset
        if starts is not None:
            result = result & (j >= starts[batch % starts.shape[0], i])
        if mask is not None:
            result = result & mask[batch % mask.shape[0], head % mask.shape[1], i, j]
        return result

    return visible


def _allowed(inputs: Inputs, spec: GateSpec) -> MaskMod:
    """Not an edge of a closed head, and no sink edge if these are to stay closed."""
    sinks = None if spec.sinks else sink_keys(inputs, spec)
    closed = spec.closed

    def allowed(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        result = j >= 0
        if sinks is not None:
            result = result & (j != sinks[batch % sinks.shape[0], head % sinks.shape[1], i])
        if closed is not None:
            result = result & ~closed[head]
        return result

    return allowed
