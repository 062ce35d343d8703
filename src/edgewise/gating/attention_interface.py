"""The attention and mask functions that transformers calls for `attn_implementation="edgewise"`, and their registration.

What a host does to its scores beyond scale and mask (soft-capping, sinks, position biases, an indexer's choice of keys)
arrives as an argument: every argument that is not known to be harmless is refused. What arrives by no argument is caught by
`probe.py`, which compares logits with the host's own attention.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, create_causal_mask, sdpa_mask
from transformers.modeling_utils import AttentionInterface, PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.kernels.equations import AttentionOutput

NAME = "edgewise"
_OUTPUTS = {
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "logits_to_keep",
}
_INPUTS = {"use_cache", "cache_position", "position_ids", "token_type_ids", "mm_token_type_ids", "labels"}
_SETTINGS = {
    "num_items_in_batch",
    "deterministic",
    "layer_idx",
    "sliding_window",
}  # the mask holds a window too
HARMLESS = frozenset(_OUTPUTS | _INPUTS | _SETTINGS)
"""Arguments that do not change what eager attention computes. Any other is refused, unless it is None, False or 0."""


class AttentionCall(NamedTuple):
    """Arguments of one call of the attention function, checked."""

    module: nn.Module
    q: Tensor  # [batch, heads, queries, d]
    k: Tensor  # [batch, kv_heads, keys, d]
    v: Tensor  # [batch, kv_heads, keys, d_v]
    scale: float
    mask: Tensor | None  # bool, [1 or batch, 1 or heads, queries, keys]
    extra: dict[str, Any]  # the host's other arguments
    starts: Tensor | None = None  # int [batch, queries]: first visible key of each query


Attend = Callable[[AttentionCall], AttentionOutput]


def attend_through_gate(call: AttentionCall) -> AttentionOutput:
    """Attention of the `EdgeGate` that `install` has put on the module."""
    gate = getattr(call.module, "edge_gate", None)
    if gate is None:
        raise EdgewiseError(
            "attn_implementation='edgewise' was set by hand; use edgewise.load(...) or edgewise.install(model)"
        )
    return_weights = bool(call.extra.get("output_attentions"))
    return gate(call.q, call.k, call.v, call.scale, call.mask, return_weights, call.starts)


_attend: ContextVar[Attend] = ContextVar("attend", default=attend_through_gate)


@contextmanager
def attending_by(attend: Attend) -> Iterator[None]:
    """Let another function compute attention inside a `with` block."""
    token = _attend.set(attend)
    try:
        yield
    finally:
        _attend.reset(token)


def edgewise_attention(
    module: nn.Module,
    query: Tensor,  # [batch, heads, queries, d]
    key: Tensor,  # [batch, kv_heads, keys, d]
    value: Tensor,  # [batch, kv_heads, keys, d_v]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,  # not applied: in training the gate's noise takes its place
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # [batch, queries, heads, d_v], [batch, heads, queries, keys]
    """The attention function that transformers calls: checks the host's request, then attends."""
    unsupported = sorted(name for name in kwargs.keys() - HARMLESS if _requests_something(kwargs[name]))
    if unsupported:
        raise EdgewiseError(
            f"{type(module).__name__} changes its attention by {', '.join(unsupported)}, which gates cannot follow exactly"
        )
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise EdgewiseError(
            f"{type(module).__name__} is not causal: tokens attend to later ones; edgewise needs a decoder"
        )
    prepared = getattr(attention_mask, "edgewise_starts", None)
    starts, mask = (
        (None, _checked_mask(attention_mask, query, key)) if prepared is None else (prepared[0], None)
    )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # the compiler cannot read context variables; nothing else attends while it traces
    attend = attend_through_gate if torch.compiler.is_compiling() else _attend.get()
    output = attend(AttentionCall(module, query, key, value, scale, mask, kwargs, starts))
    return output.y.transpose(1, 2).contiguous(), output.weights


def _requests_something(value: Any) -> bool:
    return value is not None and (isinstance(value, Tensor) or value not in (False, 0, "", (), [], {}))


def _checked_mask(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask as bool [1 or batch, 1 or heads, queries, keys]; refuses one that is not causal or not binary."""
    batch, heads, queries, keys = *query.shape[:3], key.shape[2]
    if (
        mask is None
        or mask.is_meta
        or getattr(mask, "edgewise_checked", None) == (batch, heads, queries, keys)
    ):
        return mask
    cut = mask[..., :keys]
    if (
        cut.ndim != 4
        or cut.shape[0] not in (1, batch)
        or cut.shape[1] not in (1, heads)
        or cut.shape[2:] != (queries, keys)
    ):
        raise EdgewiseError(
            f"the attention mask has shape {list(mask.shape)}; "
            f"expected [1 or {batch}, 1 or {heads}, {queries}, {keys}]: batch, heads, queries, keys"
        )
    visible = cut if cut.dtype == torch.bool else cut == 0
    if (
        torch.compiler.is_compiling()
    ):  # values are not known; masks from `edgewise_mask` are causal and binary
        return visible
    if cut.dtype != torch.bool and not (visible | (cut <= torch.finfo(torch.float16).min)).all():
        raise EdgewiseError(
            "the attention mask holds values other than 0 and minus infinity; gates need a mask that only hides keys"
        )
    if visible.triu(keys - queries + 1).any():
        raise EdgewiseError("the attention mask is not causal: a token attends to a later one")
    if (
        cut.dtype == torch.bool and mask.shape == cut.shape
    ):  # every layer gets this same tensor: check it once
        mask.edgewise_checked = (batch, heads, queries, keys)  # pyright: ignore
    return visible


def edgewise_mask(
    q_length: int, kv_length: int, allow_is_causal_skip: bool = True, **kwargs: Any
) -> Tensor | None:
    """The mask function that transformers calls: a bool mask in which padded queries see no key, or None if plain causal."""
    # a static cache has empty columns after the last query, which None could not express
    skip = allow_is_causal_skip and q_length in (1, kv_length)
    mask = sdpa_mask(q_length=q_length, kv_length=kv_length, allow_is_causal_skip=skip, **kwargs)
    if mask is None or kwargs.get("attention_mask") is None:
        return mask
    # With right padding, padded queries still see real keys. They are the queries that do not see themselves.
    offset = kwargs.get("q_offset", 0) - kwargs.get("kv_offset", 0)
    own = torch.arange(q_length, device=mask.device) + offset
    sees_itself = mask.gather(-1, own.view(1, 1, -1, 1).expand(*mask.shape[:2], -1, 1))
    return mask & sees_itself


def prepared_mask(ids: Tensor, positions: Tensor | None) -> Tensor:  # [n, t], [n, t] -> bool [n, 1, t, t]
    """The attention mask of packed documents as the first visible key of each query, for hosts that take prepared masks.

    It takes no memory, and without it transformers waits for the device in each forward pass, to see whether sequences are
    packed. `positions`: 0 where a document begins; None if each sequence is one. Read as a plain mask it would show later
    tokens too, which `_checked_mask` refuses: what a host makes of it cannot go unnoticed.
    """
    n, t = ids.shape
    mask = torch.ones((), dtype=torch.bool, device=ids.device).expand(n, 1, t, t)
    starts = None if positions is None else torch.arange(t, device=ids.device) - positions
    mask.edgewise_starts = (starts,)  # pyright: ignore
    return mask


def takes_prepared_mask(model: nn.Module) -> bool:
    """Whether a model hands a prepared mask to its layers as it is: one that has transformers make the plain causal one."""
    host = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), None)
    if host is None or host.config is not host.config.get_text_config():
        return False
    config: Any = host.config
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    spans = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    made_by = getattr(sys.modules[type(host).__module__], "create_causal_mask", None)
    is_plain = layers == {"full_attention"} and not any(spans)
    return config._attn_implementation == NAME and is_plain and made_by is create_causal_mask


AttentionInterface.register(NAME, edgewise_attention)
AttentionMaskInterface.register(NAME, edgewise_mask)
