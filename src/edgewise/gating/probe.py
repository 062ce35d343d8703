"""Probe a host model before installing gates: is it causal, does all its attention pass through the attention function, and
does dense attention reproduce its logits?"""

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.attention_interface import NAME, AttentionCall, attending_by
from edgewise.gating.edge_gate import HeadShape
from edgewise.kernels.dense import dense_attention
from edgewise.kernels.equations import AttentionOutput, visible_keys

PROBE_TOKENS = 12
LAYER_TOLERANCE = 1e-4
"""Largest relative difference between a layer's own eager attention and ours, in single precision."""


class AttentionLayer(NamedTuple):
    """One attention module of a host."""

    module: nn.Module
    shape: HeadShape


def probe(model: PreTrainedModel) -> list[AttentionLayer]:
    """The attention modules in layer order; raises an error if gates could not follow the host exactly.

    Runs three short forward passes; leaves the model with `attn_implementation="edgewise"`.
    """
    name = type(model).__name__
    ids = _probe_ids(model)
    model.set_attn_implementation("eager")
    host_logits = _logits(model, ids)
    tolerance = 1e-4 if model.dtype in (torch.float32, torch.float64) else 5e-2
    tolerance *= max(1.0, host_logits.abs().max().item())
    _check_causal(model, ids, host_logits, tolerance)
    model.set_attn_implementation(NAME)
    calls = _Calls()
    with attending_by(calls):
        dense_logits = _logits(model, ids)
    n_layers = model.config.get_text_config().num_hidden_layers
    if len(calls.layers) != n_layers or len({id(layer.module) for layer in calls.layers}) != n_layers:
        raise EdgewiseError(
            f"only {len(calls.layers)} attention calls of {name}'s {n_layers} layers go through transformers' "
            "attention registry"
        )
    difference = (dense_logits - host_logits).abs().max().item()
    if not difference <= tolerance or not max(calls.differences) <= LAYER_TOLERANCE:
        raise EdgewiseError(
            f"{name} changes its attention in a way that edgewise cannot follow: "
            f"with all gates open its logits differ by {difference:.2g}"
        )
    return calls.layers


def _probe_ids(model: PreTrainedModel) -> Tensor:  # [1, tokens]
    config = model.config.get_text_config()
    if model.get_output_embeddings() is None or not hasattr(config, "vocab_size"):
        raise EdgewiseError(
            f"{type(model).__name__} has no language-model head; edgewise needs a causal language model"
        )
    length = min(PROBE_TOKENS, getattr(config, "max_position_embeddings", PROBE_TOKENS))
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, config.vocab_size, (1, length), generator=generator).to(model.device)


def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.float()


def _check_causal(model: PreTrainedModel, ids: Tensor, logits: Tensor, tolerance: float) -> None:
    """Changing the last token must not change earlier logits."""
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % model.config.get_text_config().vocab_size
    if (logits[:, :-1] - _logits(model, changed)[:, :-1]).abs().max() > tolerance:
        raise EdgewiseError(
            f"{type(model).__name__} is not causal: a token's logits depend on later ones; edgewise needs a decoder"
        )


class _Calls:
    """Dense attention that records each call's module, sizes and difference from the host's eager attention."""

    def __init__(self) -> None:
        self.layers: list[AttentionLayer] = []
        self.differences: list[float] = []

    def __call__(self, call: AttentionCall) -> AttentionOutput:
        shape = HeadShape(call.q.shape[1], call.k.shape[1], call.v.shape[-1])
        self.layers.append(AttentionLayer(call.module, shape))
        self.differences.append(_difference_from_eager(call))
        return dense_attention(call.q, call.k, call.v, call.scale, call.mask)


def _difference_from_eager(call: AttentionCall) -> float:
    """Relative difference between the host's eager attention and ours, in single precision whatever the model's.

    Logits in half precision could hide a small change to the scores. By transformers' convention the eager function stands
    beside the attention class; where it does not, only the logits are compared.
    """
    eager: Any = getattr(sys.modules[type(call.module).__module__], "eager_attention_forward", None)
    if eager is None:
        return 0.0
    q, k, v = call.q.float(), call.k.float(), call.v.float()
    visible = visible_keys(q.shape[2], k.shape[2], None, q.device)
    mask = torch.zeros_like(visible, dtype=q.dtype).masked_fill(~visible, torch.finfo(q.dtype).min)
    host = eager(call.module, q, k, v, mask, scaling=call.scale, dropout=0.0, **call.extra)[0].transpose(1, 2)
    ours = dense_attention(q, k, v, call.scale).y
    return (host - ours).abs().max().item() / max(1.0, host.abs().max().item())
