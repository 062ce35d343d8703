"""Where things are inside an architecture: decoder layers, norms, each head's projections, MLPs.

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
    """One decoder layer's parts."""

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
        """What makes each head's query, key or value from the normalised residual stream."""
        which, columns = self.columns[kind]
        matrix, bias = weight_and_bias(self.projections[which])
        return matrix[columns].transpose(1, 2), None if bias is None else bias[columns][:, None]

    @property
    def out_weights(self) -> Tensor:  # -> [heads, d, D]
        """What each head writes to the residual stream, from its output."""
        matrix, _ = weight_and_bias(self.out)
        return matrix.T.unflatten(0, (self.heads, -1))


@dataclass(frozen=True)
class Parts:
    """A whole model's parts."""

    layers: Sequence[Layer]
    final_norm: nn.Module


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder layers, in order: of each installed attention module, the member of a list that it belongs to."""
    found: dict[int, nn.Module] = {}
    for name, module in model.named_modules():
        gate = getattr(module, "edge_gate", None)
        if gate is not None:
            place = re.match(r"(.*\.\d+)\.", name + ".")
            if place is None:
                raise EdgewiseError(f"{type(model).__name__} does not keep its layers in a list")
            found[gate.layer] = model.get_submodule(place[1])
    if not found:
        raise EdgewiseError(
            "this model was not loaded by edgewise; use edgewise.load(...), or edgewise.install(model) first"
        )
    return [found[layer] for layer in sorted(found)]


def parts_of(model: nn.Module) -> Parts:
    """The parts of a model whose layers are `x + attention(norm(x))` and `x + mlp(norm(x))`, one after the other or side by
    side."""
    name = type(model).__name__
    layers = [_layer(module, name) for module in decoder_layers(model)]
    base: Any = model
    final_norm = _child(base.base_model, _FINAL_NORM, name)
    return Parts(layers, final_norm)


def _layer(module: nn.Module, name: str) -> Layer:
    attention = next(part for part in module.modules() if hasattr(part, "edge_gate"))
    gate: Any = attention.edge_gate
    heads, kv_heads = gate.heads, gate.kv_heads
    out = _child(attention, _OUT, name)
    d = weight_and_bias(out)[0].shape[1] // heads
    fused = _maybe(attention, _FUSED) or _maybe(attention, _INTERLEAVED)
    made_by = [fused] if fused else [_child(attention, (each,), name) for each in _SEPARATE]
    counts = {"q": heads, "k": kv_heads, "v": kv_heads}
    columns: dict[str, tuple[int, Tensor]] = {}
    first = 0
    for place, (kind, count) in enumerate(counts.items()):
        block = torch.arange(count * d).view(count, d)
        if fused is None:
            columns[kind] = (place, block)
        elif _maybe(attention, _INTERLEAVED) is not None:
            columns[kind] = (0, torch.arange(heads)[:, None] * 3 * d + place * d + torch.arange(d))
        else:
            columns[kind] = (0, first + block)
            first += count * d
    norms = _child(module, _NORM_1, name), _child(module, _NORM_2, name)
    return Layer(
        module,
        attention,
        *norms,
        _child(module, _MLP, name),
        made_by,
        columns,
        out,
        heads,
        kv_heads,
    )


def weight_and_bias(projection: nn.Module) -> tuple[Tensor, Tensor | None]:  # -> [out, in], [out]
    """Of a linear map, whichever way round it keeps its matrix."""
    found: Any = projection
    matrix = found.weight if isinstance(projection, nn.Linear) else found.weight.T  # GPT-2's Conv1D
    return matrix.detach(), None if found.bias is None else found.bias.detach()


def _maybe(module: nn.Module, names: Sequence[str]) -> nn.Module | None:
    return next((part for name in names if isinstance(part := getattr(module, name, None), nn.Module)), None)


def _child(module: nn.Module, names: Sequence[str], model: str) -> nn.Module:
    found = _maybe(module, names)
    if found is None:
        raise EdgewiseError(
            f"{model}: {type(module).__name__} has no {' or '.join(names)}, so its edges cannot be told apart; "
            "circuits of heads work (`edges=False`)"
        )
    return found


def mlp_width(model: Any) -> int:
    """The width between an MLP's linear maps."""
    text = model.config.get_text_config()
    return getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size


def vocabulary_size(model: Any) -> int:
    """How many tokens the model computes logits of."""
    return len(model.get_output_embeddings().weight)
