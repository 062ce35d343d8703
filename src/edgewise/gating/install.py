"""Gated attention inside any causal model of transformers, through its attention and mask registries.

Every attention module of a host gets an `EdgeGate` child, and the host's `attn_implementation` becomes "edgewise". Model
code is neither copied nor patched. What a host does to its scores beyond scale and mask (soft-capping, sinks, position
biases) is refused; whatever that list does not know is caught by comparing logits with the host's own attention when
installing.
"""

import sys
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from edgewise.core.errors import EdgewiseError
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import EdgeGate, gate_config
from edgewise.kernels.equations import gated_attention, in_sight

NAME = "edgewise"
CHANGES_SCORES = ("softcap", "s_aux", "position_bias", "head_mask", "alibi", "sinks", "cache")
"""Arguments by which hosts ask for something other than softmax(scores): refused unless empty."""


# -------------------------------------------------------------------------------------- what transformers calls

_probing: ContextVar[list[tuple[nn.Module, int, int, int, float]] | None] = ContextVar(
    "probing", default=None
)


def _attention(
    module: nn.Module,
    query: Tensor,  # [batch, heads, queries, d]
    key: Tensor,  # [batch, kv_heads, keys, d]
    value: Tensor,  # [batch, kv_heads, keys, d_v]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,  # not applied: while training, the gate's noise takes its place
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # [batch, queries, heads, d_v]
    asked = [name for name in CHANGES_SCORES if kwargs.get(name) is not None]
    if asked:
        raise EdgewiseError(
            f"{type(module).__name__} changes its attention by {', '.join(asked)}, which gates cannot follow exactly"
        )
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise EdgewiseError(
            f"{type(module).__name__} is not causal: every token sees the whole text; edgewise needs a decoder"
        )
    mask = _checked(attention_mask, query, key)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    probed = _probing.get()
    if probed is not None:
        dense = gated_attention(query, key, value, query, 0.0, "dense", scale, mask)
        sizes = query.shape[1], key.shape[1], value.shape[-1]
        probed.append((module, *sizes, _gap(module, query, key, value, scale, kwargs)))
        return dense.y.transpose(1, 2).contiguous(), None
    gate = getattr(module, "edge_gate", None)
    if gate is None:
        raise EdgewiseError(
            "attn_implementation='edgewise' was set by hand; use edgewise.load(...) or edgewise.install(model)"
        )
    gated = gate(query, key, value, scale, mask, bool(kwargs.get("output_attentions")))
    return gated.y.transpose(1, 2).contiguous(), gated.weights


def _gap(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float, kwargs: dict[str, Any]
) -> float:
    """How far the host's own eager attention is from ours, in single precision whatever the model's.

    Logits in half precision could hide a small change to the scores. By transformers' convention the eager function stands
    beside the attention class; where it does not, the comparison of logits has to do.
    """
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        return 0.0
    q, k, v = query.float(), key.float(), value.float()
    seen = in_sight(q.shape[2], k.shape[2], None, q.device)
    hidden = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min)
    own = eager(module, q, k, v, hidden, scaling=scale, dropout=0.0, **kwargs)[0].transpose(1, 2)
    return (own - gated_attention(q, k, v, q, 0.0, "dense", scale).y).abs().max().item() / max(
        1.0, own.abs().max().item()
    )


def _checked(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask as booleans, [1 or batch, 1 or heads, queries, keys]; refuses one that shows a query its future."""
    batch, heads, queries, keys = *query.shape[:3], key.shape[2]
    if mask is None or getattr(mask, "edgewise_checked", None) == (batch, heads, queries, keys):
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
    allowed = cut if cut.dtype == torch.bool else cut == 0
    if cut.dtype != torch.bool and not (allowed | (cut <= torch.finfo(torch.float16).min)).all():
        raise EdgewiseError(
            "the attention mask holds values other than 0 and minus infinity; gates need a mask that only hides"
        )
    if allowed.triu(keys - queries + 1).any():
        raise EdgewiseError("the attention mask is not causal: it lets a token see a later one")
    if cut.dtype == torch.bool and mask.shape == cut.shape:  # the same tensor visits every layer
        mask.edgewise_checked = (batch, heads, queries, keys)  # pyright: ignore
    return allowed


def _mask(q_length: int, kv_length: int, allow_is_causal_skip: bool = True, **kwargs: Any) -> Tensor | None:
    """The host's mask as booleans, or None where plain causality says it all. A padded query sees nothing."""
    # a static cache has empty columns after the last query, which None could not tell
    skip = allow_is_causal_skip and q_length in (1, kv_length)
    mask = sdpa_mask(q_length=q_length, kv_length=kv_length, allow_is_causal_skip=skip, **kwargs)
    if mask is None or kwargs.get("attention_mask") is None:
        return mask
    # Right padding leaves padded queries in sight of real keys. They are the queries that do not see themselves.
    offset = kwargs.get("q_offset", 0) - kwargs.get("kv_offset", 0)
    own = torch.arange(q_length, device=mask.device) + offset
    sees_itself = mask.gather(-1, own.view(1, 1, -1, 1).expand(*mask.shape[:2], -1, 1))
    return mask & sees_itself


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)


# -------------------------------------------------------------------------------------------------- installing


def install(model: PreTrainedModel, config: GateConfig | None = None) -> PreTrainedModel:
    """Route a host's attention through edgewise, in place. Without a gate it stays dense, and can be tapped.

    Three short forward passes prove that the host is causal, that all its attention comes by, and that with every gate
    open its logits are its own. Attention dropout, if the host has any, is no longer applied while training.
    """
    if not isinstance(model, PreTrainedModel):
        raise EdgewiseError(f"edgewise works on models of transformers, not on {type(model).__name__}")
    name = type(model).__name__
    if config is not None and not config.sinks and _has_windows(model):
        raise EdgewiseError(
            f"{name} has sliding windows, out of which a text's first token falls; give it a gate with sinks"
        )
    installed = [
        (module, gate.heads, gate.kv_heads, gate.width)
        for module in model.modules()
        if isinstance(gate := getattr(module, "edge_gate", None), EdgeGate)
    ]
    if installed:
        model.set_attn_implementation(NAME)
        if gate_config(model) is None:
            return _set_gates(model, installed, config)
        if config is None:
            return model
        raise EdgewiseError("this model already has a gate; load the dense host again to start anew")
    if getattr(model.config, "is_encoder_decoder", False):
        raise EdgewiseError(f"{name} is an encoder-decoder; edgewise needs a decoder-only language model")
    if not model._can_set_attn_implementation():
        raise EdgewiseError(
            f"{name} computes attention in its own code, not through transformers' attention registry"
        )
    host_attention = cast(str, model.config._attn_implementation)
    was_training = model.training
    model.eval()
    try:
        modules = _probe(model, name)
    except BaseException:
        model.set_attn_implementation(host_attention)
        raise
    finally:
        model.train(was_training)
    for part in {model, model.base_model}:
        part.register_forward_pre_hook(_check_length, with_kwargs=True)
    return _set_gates(model, modules, config)


def _has_windows(model: PreTrainedModel) -> bool:
    text = model.config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    return "sliding_attention" in kinds if kinds else getattr(text, "sliding_window", None) is not None


def _probe(model: PreTrainedModel, name: str) -> list[tuple[nn.Module, int, int, int]]:
    """The attention modules in the order of layers, with their numbers of heads and key/value heads, and a value's width."""
    text = model.config.get_text_config()
    if model.get_output_embeddings() is None or not hasattr(text, "vocab_size"):
        raise EdgewiseError(f"{name} has no language-model head; edgewise needs a causal language model")
    length = min(12, getattr(text, "max_position_embeddings", 12))
    ids = torch.randint(0, text.vocab_size, (1, length), generator=torch.Generator().manual_seed(0)).to(
        model.device
    )
    other_end = ids.clone()
    other_end[0, -1] = (ids[0, -1] + 1) % text.vocab_size

    def logits(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(input_ids=x, use_cache=False).logits.float()

    model.set_attn_implementation("eager")
    own = logits(ids)
    tolerance = 1e-4 if model.dtype in (torch.float32, torch.float64) else 5e-2
    room = tolerance * max(1.0, own.abs().max().item())
    if (own[:, :-1] - logits(other_end)[:, :-1]).abs().max() > room:
        raise EdgewiseError(
            f"{name} is not causal: a token's logits depend on later ones; edgewise needs a decoder"
        )
    model.set_attn_implementation(NAME)
    token = _probing.set([])
    try:
        through_edgewise = logits(ids)
        modules = cast(list, _probing.get())
    finally:
        _probing.reset(token)
    layers = text.num_hidden_layers
    if len(modules) != layers or len({id(m) for m, *_ in modules}) != layers:
        raise EdgewiseError(
            f"only {len(modules)} attention calls of {name}'s {layers} layers go through transformers' attention registry"
        )
    gap = (through_edgewise - own).abs().max().item()
    if not gap <= room or not max(gap_of_layer for *_, gap_of_layer in modules) <= 1e-4:
        raise EdgewiseError(
            f"{name} does something to its attention that edgewise cannot follow: "
            f"with all gates open its output differs by {gap:.2g} in the logits"
        )
    return [(module, heads, kv_heads, width) for module, heads, kv_heads, width, _ in modules]


def _set_gates(
    model: PreTrainedModel, modules: list[tuple[nn.Module, int, int, int]], config: GateConfig | None
) -> PreTrainedModel:
    for layer, (module, heads, kv_heads, width) in enumerate(modules):
        device = next(module.parameters()).device
        if not hasattr(module, "edge_gate"):
            module.register_forward_pre_hook(_check_implementation)
        module.edge_gate = EdgeGate(layer, heads, kv_heads, width, config, device).train(model.training)
    return model


def _check_implementation(module: nn.Module, args: tuple) -> None:
    """`set_attn_implementation("sdpa")` on a twin would make it dense, and blind a tap, without a word."""
    now = cast(Any, module).config._attn_implementation
    if now != NAME:
        raise EdgewiseError(
            f"this model's attention was switched from {NAME!r} to {now!r}, which ignores its gates and taps; "
            f"switch back with model.set_attn_implementation({NAME!r}), or use edgewise.mode(model, 'dense')"
        )


def _check_length(model: nn.Module, args: tuple, kwargs: dict) -> None:
    """A text longer than the model's context fails deep inside some hosts and passes silently through others."""
    context = getattr(cast(PreTrainedModel, model).config.get_text_config(), "max_position_embeddings", None)
    offered = (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args[:1])
    given = next((x for x in offered if x is not None), None)
    if context is None or given is None:
        return
    past = kwargs.get("past_key_values")
    length = given.shape[1] + (past.get_seq_length() if past is not None else 0)
    if length > context:
        raise EdgewiseError(
            f"the text is {length} tokens long, the model's context is {context}: shorten the text"
        )
