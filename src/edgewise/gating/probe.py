"""Probe a host model before installing gates: is it causal, does all its attention pass through the attention function, and
does dense attention reproduce its logits?"""

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.core.devices import without_tf32
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.gating.attention_interface import NAME, AttentionCall, attending_by
from edgewise.gating.edge_gate import HeadShape
from edgewise.kernels.dense import dense_attention
from edgewise.kernels.equations import AttentionOutput, visible_keys

PROBE_TOKENS = 24
SPANS = ("sliding_window", "attention_chunk_size", "index_topk", "indexer_topk", "chunk_size", "block_size")
"""Config fields that say from how many tokens on attention differs from plain causal attention."""
PROBE_COST = 5e10
"""Tokens times parameters above which a probe does not reach beyond a host's window: about 10 seconds on a CPU."""
LAYER_TOLERANCE = 1e-4
"""Largest relative difference between a layer's own eager attention and ours, in single precision."""


class AttentionLayer(NamedTuple):
    """One attention module of a host."""

    module: nn.Module
    shape: HeadShape


@without_tf32()
def probe(model: PreTrainedModel) -> list[AttentionLayer]:
    """The attention modules in layer order; raises an error if gates could not follow the host exactly.

    Runs three short forward passes; leaves the model with `attn_implementation="edgewise"`.
    """
    name = type(model).__name__
    ids = _probe_ids(model)
    model.set_attn_implementation("eager")
    try:
        host_logits = _logits(model, ids)
    except Exception as error:  # somebody else's config: anything can be wrong with it
        raise EdgewiseError(
            f"{name} does not run, even without gates, on a text of {ids.shape[1]} tokens: {first_line(error)}"
        ) from error
    tolerance = 1e-4 if model.dtype in (torch.float32, torch.float64) else 5e-2
    tolerance *= max(1.0, host_logits.abs().max().item())
    _check_causal(model, ids, host_logits, tolerance)
    model.set_attn_implementation(NAME)
    calls = _Calls()
    with attending_by(calls):
        dense_logits = _logits(model, ids)
    n_layers = model.config.get_text_config().num_hidden_layers
    modules = {id(layer.module) for layer in calls.layers}
    if not calls.layers or len(calls.layers) != n_layers or len(modules) != n_layers:
        raise _not_all_layers(model, len(calls.layers), n_layers, len(modules))
    difference = (dense_logits - host_logits).abs().max().item()
    if not difference <= tolerance or not max(calls.differences) <= LAYER_TOLERANCE:
        raise EdgewiseError(
            f"{name} changes its attention in a way that edgewise cannot follow: "
            f"with all gates open its logits differ by {difference:.2g}"
        )
    return calls.layers


@torch.no_grad()
def check_requests(model: PreTrainedModel) -> None:
    """Refuse, from a model on the meta device, what a host requests that gates cannot follow; nothing is computed."""

    def nothing(call: AttentionCall) -> AttentionOutput:
        layers.add(id(call.module))
        none = call.q.new_zeros(call.q.shape[:2])
        return AttentionOutput(call.q.new_empty(*call.q.shape[:3], call.v.shape[-1]), none, none)

    layers: set[int] = set()
    model.set_attn_implementation(NAME)
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    attention = sum("attention" in kind and "linear" not in kind for kind in layer_types)
    if attention < len(layer_types):
        raise _not_all_layers(model, attention, len(layer_types))
    ids = torch.zeros(1, 4, dtype=torch.long, device="meta")
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool, device="meta")
    try:
        with attending_by(nothing):
            model.eval()(input_ids=ids, attention_mask=mask, position_ids=ids, use_cache=False)
    except EdgewiseError:
        raise
    except Exception:  # not everything runs without numbers: what is left is checked when the model is loaded
        return
    if len(layers) != config.num_hidden_layers:
        raise _not_all_layers(model, len(layers), config.num_hidden_layers)


def _not_all_layers(
    model: PreTrainedModel, calls: int, n_layers: int, modules: int | None = None
) -> EdgewiseError:
    name = type(model).__name__
    if calls == n_layers == 0:
        return EdgewiseError(f"{name} has no layers")
    if calls >= n_layers:
        return EdgewiseError(
            f"{calls} attention calls of {name}'s {n_layers} layers, by {modules} modules, go through transformers' "
            "attention registry; gates need one call a layer"
        )
    return EdgewiseError(
        f"only {calls} attention calls of {name}'s {n_layers} layers go through transformers' attention registry"
    )


def _probe_ids(model: PreTrainedModel) -> Tensor:  # [1, tokens]
    config = model.config.get_text_config()
    if model.get_output_embeddings() is None or not hasattr(config, "vocab_size"):
        raise EdgewiseError(
            f"{type(model).__name__} has no language-model head; edgewise needs a causal language model"
        )
    length = _probe_length(model)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, config.vocab_size, (1, length), generator=generator).to(model.device)


def _probe_length(model: PreTrainedModel) -> int:
    """Tokens that show the host's windows, chunks and indexers at work, where that is affordable."""
    config = model.config.get_text_config()
    affordable = PROBE_COST / max(1, sum(p.numel() for p in model.parameters()))
    spans = [span for name in SPANS if isinstance(span := getattr(config, name, None), int)]
    needed = [span + span // 2 + 2 for span in spans]
    length = max([PROBE_TOKENS, *(tokens for tokens in needed if tokens <= affordable)])
    length = min(length, getattr(config, "max_position_embeddings", None) or length)
    if length < 2:
        raise EdgewiseError(
            f"{type(model).__name__} reads texts of {length} tokens, in which there is nothing to attend to"
        )
    return length


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
