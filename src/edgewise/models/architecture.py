"""The modules of an architecture: decoder layers, norms, each head's projections, MLPs.

Patching whole heads needs none of this beyond the list of layers. Edges between components do: which residual stream a
head's query, key and value read, and what each head writes. Names differ between architectures, and this file is the only
one that knows them; whether it is right about a model is checked on the model itself (`circuits.streams`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError

_NORM_1 = ("ln_1", "input_layernorm")
_NORM_2 = ("ln_2", "post_attention_layernorm")
_MLP = ("mlp",)
_OUT = ("c_proj", "o_proj", "dense", "out_proj")
_FINAL_NORM = ("ln_f", "norm", "final_layer_norm")
_SEPARATE = ("q_proj", "k_proj", "v_proj")
_FUSED = ("c_attn", "qkv_proj")  # all queries, then all keys, then all values
_INTERLEAVED = ("query_key_value",)  # each head's query, key and value beside each other


@dataclass(frozen=True)
class Layer:
    """The modules of one decoder layer."""

    module: nn.Module
    attention: nn.Module
    norm_1: nn.Module
    norm_2: nn.Module
    mlp: nn.Module
    projections: Sequence[nn.Module]
    """The one or three modules that make queries, keys and values."""
    columns: dict[str, tuple[int, Tensor]]
    """For "q", "k" and "v": which of the projections, and which of its output columns, int64 [heads or kv_heads, d]."""
    out: nn.Module
    heads: int
    kv_heads: int

    def weights(self, kind: str) -> tuple[Tensor, Tensor | None]:  # -> [heads, D, d], [heads, 1, d]
        """W_Q, W_K or W_V and its bias: they map the normalised residual stream to each head's queries, keys or values."""
        which, columns = self.columns[kind]
        matrix, bias = weight_and_bias(self.projections[which])
        return matrix[columns].transpose(1, 2), None if bias is None else bias[columns][:, None]

    @property
    def out_weights(self) -> Tensor:  # -> [heads, d, D]
        """W_O: maps each head's output to what it writes to the residual stream."""
        matrix, _ = weight_and_bias(self.out)
        return matrix.T.unflatten(0, (self.heads, -1))


@dataclass(frozen=True)
class Architecture:
    """The modules of a model: its decoder layers and the norm before the unembedding."""

    layers: Sequence[Layer]
    final_norm: nn.Module


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder layers, in order: of each attention module with a gate, the member of a list that it belongs to."""
    layers: dict[int, nn.Module] = {}
    for name, module in model.named_modules():
        gate = getattr(module, "edge_gate", None)
        if gate is not None:
            member = re.match(r"(.*\.\d+)\.", name + ".")
            if member is None:
                raise EdgewiseError(f"{type(model).__name__} does not keep its layers in a list")
            layers[gate.layer] = model.get_submodule(member[1])
    if not layers:
        raise EdgewiseError(
            "this model was not loaded by edgewise; use edgewise.load(...), or edgewise.install(model) first"
        )
    return [layers[index] for index in sorted(layers)]


def architecture_of(model: nn.Module) -> Architecture:
    """The modules of a model whose layers add `attention(norm(x))` and `mlp(norm(x))` to x, in sequence or in parallel."""
    name = type(model).__name__
    layers = [_layer(module, name) for module in decoder_layers(model)]
    base: Any = model
    return Architecture(layers, _child(base.base_model, _FINAL_NORM, name))


def _layer(module: nn.Module, model: str) -> Layer:
    attention = next(child for child in module.modules() if hasattr(child, "edge_gate"))
    gate: Any = attention.edge_gate
    out = _child(attention, _OUT, model)
    d = weight_and_bias(out)[0].shape[1] // gate.heads
    fused = _find_child(attention, _FUSED) or _find_child(attention, _INTERLEAVED)
    return Layer(
        module=module,
        attention=attention,
        norm_1=_child(module, _NORM_1, model),
        norm_2=_child(module, _NORM_2, model),
        mlp=_child(module, _MLP, model),
        projections=[fused] if fused else [_child(attention, (name,), model) for name in _SEPARATE],
        columns=_qkv_columns(attention, gate.heads, gate.kv_heads, d),
        out=out,
        heads=gate.heads,
        kv_heads=gate.kv_heads,
    )


def _qkv_columns(attention: nn.Module, heads: int, kv_heads: int, d: int) -> dict[str, tuple[int, Tensor]]:
    """For "q", "k" and "v": the index of the projection, and its output columns, int64 [heads or kv_heads, d]."""
    is_fused = _find_child(attention, _FUSED) is not None
    is_interleaved = not is_fused and _find_child(attention, _INTERLEAVED) is not None
    columns: dict[str, tuple[int, Tensor]] = {}
    first = 0
    for index, (kind, count) in enumerate({"q": heads, "k": kv_heads, "v": kv_heads}.items()):
        block = torch.arange(count * d).view(count, d)
        if is_interleaved:
            columns[kind] = (0, torch.arange(heads)[:, None] * 3 * d + index * d + torch.arange(d))
        elif is_fused:
            columns[kind] = (0, first + block)
            first += count * d
        else:
            columns[kind] = (index, block)
    return columns


def weight_and_bias(projection: nn.Module) -> tuple[Tensor, Tensor | None]:  # -> [out, in], [out]
    """The matrix and the bias of a linear map, whichever way round it keeps its matrix."""
    linear: Any = projection
    matrix = linear.weight if isinstance(projection, nn.Linear) else linear.weight.T  # GPT-2's Conv1D
    return matrix.detach(), None if linear.bias is None else linear.bias.detach()


def _find_child(module: nn.Module, names: Sequence[str]) -> nn.Module | None:
    children = (getattr(module, name, None) for name in names)
    return next((child for child in children if isinstance(child, nn.Module)), None)


def _child(module: nn.Module, names: Sequence[str], model: str) -> nn.Module:
    child = _find_child(module, names)
    if child is None:
        raise EdgewiseError(
            f"{model}: {type(module).__name__} has no {' or '.join(names)}, so its edges cannot be told apart; "
            "circuits of heads work (`edges=False`)"
        )
    return child


def mlp_width(model: Any) -> int:
    """The width of the hidden layer of the MLPs."""
    text = model.config.get_text_config()
    return getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size


def vocabulary_size(model: Any) -> int:
    """How many tokens the model computes logits of."""
    return len(model.get_output_embeddings().weight)


Parts, parts_of = Architecture, architecture_of  # former names
