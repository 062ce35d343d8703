"""Install gates in any causal model of transformers, through its attention and mask registries.

Every attention module of the host gets an `EdgeGate` child, and the host's `attn_implementation` becomes "edgewise". Model
code is neither copied nor patched.
"""

from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.attention_interface import NAME
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import EdgeGate, gate_config
from edgewise.gating.probe import AttentionLayer, probe


def install(model: PreTrainedModel, config: GateConfig | None = None) -> PreTrainedModel:
    """Route a host's attention through edgewise, in place. Without a config it stays dense, and can be tapped.

    Three short forward passes verify that the host is causal, that all its attention passes through the attention function,
    and that with every gate open its logits are unchanged. Attention dropout, if any, is no longer applied in training.
    """
    if not isinstance(model, PreTrainedModel):
        raise EdgewiseError(f"edgewise works on models of transformers, not on {type(model).__name__}")
    if config is not None and not config.sinks and _has_sliding_windows(model):
        raise EdgewiseError(
            f"{type(model).__name__} has sliding windows, which a text's first token leaves; use a gate with `sinks`"
        )
    layers = [
        AttentionLayer(module, gate.shape)
        for module in model.modules()
        if isinstance(gate := getattr(module, "edge_gate", None), EdgeGate)
    ]
    if layers:
        return _install_again(model, layers, config)
    _check_architecture(model)
    layers = _probe_in_eval_mode(model)
    for module in {model, model.base_model}:
        module.register_forward_pre_hook(_check_length, with_kwargs=True)
    return _set_gates(model, layers, config)


def _check_architecture(model: PreTrainedModel) -> None:
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise EdgewiseError(f"{name} is an encoder-decoder; edgewise needs a decoder-only language model")
    if not model._can_set_attn_implementation():
        raise EdgewiseError(
            f"{name} computes attention in its own code, not through transformers' attention registry"
        )


def _has_sliding_windows(model: PreTrainedModel) -> bool:
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        return "sliding_attention" in layer_types
    return getattr(config, "sliding_window", None) is not None


def _install_again(
    model: PreTrainedModel, layers: list[AttentionLayer], config: GateConfig | None
) -> PreTrainedModel:
    """Gate a model that was installed dense; leave a twin as it is."""
    model.set_attn_implementation(NAME)
    if gate_config(model) is None:
        return _set_gates(model, layers, config)
    if config is None:
        return model
    raise EdgewiseError("this model already has a gate; load the dense host again to start anew")


def _probe_in_eval_mode(model: PreTrainedModel) -> list[AttentionLayer]:
    """Probe without dropout; if the host is refused, leave it as it was."""
    host_attention = cast(str, model.config._attn_implementation)
    was_training = model.training
    model.eval()
    try:
        return probe(model)
    except BaseException:
        model.set_attn_implementation(host_attention)
        raise
    finally:
        model.train(was_training)


def _set_gates(
    model: PreTrainedModel, layers: list[AttentionLayer], config: GateConfig | None
) -> PreTrainedModel:
    for index, (module, shape) in enumerate(layers):
        device = _device_of(module)
        if not hasattr(module, "edge_gate"):
            module.register_forward_pre_hook(_check_implementation)
        module.edge_gate = EdgeGate(index, shape, config, device).train(model.training)
    return model


def _device_of(module: nn.Module) -> torch.device:
    """Where a module computes: where its weights are, or where accelerate brings them when it is called."""
    device = next(module.parameters()).device
    hooks = (getattr(part, "_hf_hook", None) for part in module.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    execution_device = next((candidate for candidate in devices if candidate is not None), device)
    return torch.device(execution_device) if device.type == "meta" else device


def _check_implementation(module: nn.Module, args: tuple) -> None:
    """Hook: refuse `set_attn_implementation("sdpa")` on a twin, which would silently make it dense and its taps blind."""
    current = cast(Any, module).config._attn_implementation
    if current != NAME:
        raise EdgewiseError(
            f"this model's attention was switched from {NAME!r} to {current!r}, which ignores its gates and taps; "
            f"switch back with model.set_attn_implementation({NAME!r}), or use edgewise.mode(model, 'dense')"
        )


def _check_length(model: nn.Module, args: tuple, kwargs: dict) -> None:
    """Hook: refuse texts longer than the context, which fail deep inside some hosts and pass silently through others."""
    context = getattr(cast(PreTrainedModel, model).config.get_text_config(), "max_position_embeddings", None)
    candidates = (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args[:1])
    inputs = next((x for x in candidates if x is not None), None)
    if context is None or inputs is None:
        return
    cache = kwargs.get("past_key_values")
    length = inputs.shape[1] + (cache.get_seq_length() if cache is not None else 0)
    if length > context:
        raise EdgewiseError(
            f"the text is {length} tokens long, the model's context is {context}: shorten the text"
        )
