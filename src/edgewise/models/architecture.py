"""The modules of an architecture: decoder layers, norms, each head's projections, MLPs.

Patching whole heads needs none of this beyond the list of layers. Edges between components do: which residual stream a
head's query, key and value read, and what each head writes. Names differ between architectures, and this file is the only
one that knows them; whether it is right about a model is checked on the model itself (`circuits.streams`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError, UnsupportedArchitecture


class NormNames(NamedTuple):
    """Where a decoder layer has norms: before and after its attention, before and after its MLP."""

    norm_1: str | None
    post_attention: str | None
    norm_2: str | None
    post_mlp: str | None


NORMS = (
    NormNames("ln_1", None, "ln_2", None),  # GPT-2
    NormNames("input_layernorm", None, "post_attention_layernorm", None),  # Llama and most others
    NormNames("input_layernorm", None, "input_layernorm", None),  # Cohere, Phi: one norm, in parallel
    NormNames("self_attn_layer_norm", None, "final_layer_norm", None),  # OPT, BioGPT, XGLM
    NormNames("attention_norm", None, "ffn_norm", None),
    NormNames("operator_norm", None, "ffn_norm", None),
    NormNames("attn_norm", None, "mlp_norm", None),  # ModernBERT
    NormNames("attention_layernorm", None, "feedforward_layernorm", None),  # Apertus
    NormNames("input_layernorm", None, "pre_ff_layernorm", None),
    NormNames("input_layernorm", None, "feedforward_layernorm", None),
    NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),  # OLMo 2 and 3
    NormNames(  # Gemma 3
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    NormNames("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2"),  # HyperCLOVA X
    NormNames("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
    NormNames(
        "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"
    ),  # GLM-4
)
_MLP = ("mlp", "feed_forward", "block_sparse_moe", "moe", "ffn")
_MLP_ENDS = ("fc1", "fc2")
_OUT = ("c_proj", "o_proj", "dense", "out_proj", "wo", "Wo")
_FINAL_NORM = (
    "ln_f",
    "norm",
    "final_layer_norm",
    "final_layernorm",
    "layer_norm",
    "final_norm",
    "embedding_norm",
)
_MULTIPLIER = "residual_multiplier"
_SEPARATE = ("q_proj", "k_proj", "v_proj")
_FUSED = ("c_attn", "qkv_proj")  # all queries, then all keys, then all values
_INTERLEAVED = ("query_key_value",)  # each head's query, key and value beside each other


@dataclass(frozen=True)
class Layer:
    """The modules of one decoder layer, which computes

        x <- x + multiplier * post_attention(out(heads(norm_1(x))))
        x <- x + multiplier * post_mlp(mlp(norm_2(x)))          the same x as above in a parallel layer

    A norm that the layer does not have is an identity.
    """

    module: nn.Module
    attention: nn.Module
    norm_1: nn.Module
    norm_2: nn.Module
    post_attention: nn.Module | None
    post_mlp: nn.Module | None
    multiplier: float
    mlp_in: nn.Module
    """Reads the MLP's normalised input."""
    mlp_out: nn.Module
    """Returns the MLP's output: the same module as `mlp_in`, but where a layer has no module for its MLP."""
    projections: Sequence[nn.Module]
    """The one or three modules that make queries, keys and values."""
    columns: dict[str, tuple[int, Tensor]]
    """For "q", "k" and "v": which of the projections, and which of its output columns, int64 [heads or kv_heads, d]."""
    out: nn.Module
    heads: int
    kv_heads: int

    @property
    def attention_reader(self) -> nn.Module:
        """The module whose input is the residual stream that attention reads."""
        return self.attention if isinstance(self.norm_1, nn.Identity) else self.norm_1

    @property
    def mlp_reader(self) -> nn.Module:
        """The module whose input is the residual stream that the MLP reads."""
        return self.mlp_in if isinstance(self.norm_2, nn.Identity) else self.norm_2

    @property
    def mlp_writer(self) -> nn.Module:
        """The module whose output, times `multiplier`, the MLP adds to the residual stream."""
        return self.post_mlp or self.mlp_out

    def weights(self, kind: str) -> tuple[Tensor, Tensor | None]:  # -> [heads, D, d], [heads, 1, d]
        """W_Q, W_K or W_V and its bias: they map the normalised residual stream to each head's queries, keys or values."""
        which, columns = self.columns[kind]
        matrix, bias = weight_and_bias(self.projections[which])
        rows = self.slices[kind]

        def of_heads(x: Tensor) -> Tensor:
            return x[columns] if rows is None else x[rows].unflatten(0, columns.shape)

        return of_heads(matrix).transpose(1, 2), None if bias is None else of_heads(bias)[:, None]

    @cached_property
    def slices(self) -> dict[str, slice | None]:
        """The same columns as slices, which cost no copy; None where they are not beside each other."""
        return {kind: _as_slice(columns.flatten().tolist()) for kind, (_, columns) in self.columns.items()}

    @property
    def out_weights(self) -> Tensor:  # -> [heads, d, D]
        """W_O: maps each head's output to its term of the attention output."""
        matrix, _ = weight_and_bias(self.out)
        return matrix.T.unflatten(0, (self.heads, -1))


def _as_slice(numbers: list[int]) -> slice | None:
    first, end = numbers[0], numbers[0] + len(numbers)
    return slice(first, end) if numbers == [*range(first, end)] else None


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
    """The modules of a model whose layers add what attention and MLP write to x, in sequence or in parallel."""
    name = type(model).__name__
    layers = [_layer(module, name) for module in decoder_layers(model)]
    base: Any = model
    body = base.base_model
    candidates = (
        body,
        getattr(body, "decoder", None),
        getattr(body, "model", None),
        getattr(body, "language_model", None),
    )  # the others: OPT, Llama 4, Gemma 3 with its tower
    body = next(
        (module for module in candidates if module is not None and _find_child(module, _FINAL_NORM)), body
    )
    return Architecture(layers, _child(body, _FINAL_NORM, name))


def _layer(module: nn.Module, model: str) -> Layer:
    attention = next(child for child in module.modules() if hasattr(child, "edge_gate"))
    gate: Any = attention.edge_gate
    out = _child(attention, _OUT, model)
    d = weight_and_bias(out)[0].shape[1] // gate.heads
    fused = _find_child(attention, _FUSED) or _find_child(attention, _INTERLEAVED)
    norms = _norms(module, model)
    mlp_in, mlp_out = _mlp_ends(module, model)
    return Layer(
        module=module,
        attention=attention,
        norm_1=norms["norm_1"] or nn.Identity(),
        norm_2=norms["norm_2"] or nn.Identity(),
        post_attention=norms["post_attention"],
        post_mlp=norms["post_mlp"],
        multiplier=float(getattr(module, _MULTIPLIER, 1.0)),
        mlp_in=mlp_in,
        mlp_out=mlp_out,
        projections=[fused] if fused else [_child(attention, (name,), model) for name in _SEPARATE],
        columns=qkv_columns(attention, gate.heads, gate.kv_heads, d),
        out=out,
        heads=gate.heads,
        kv_heads=gate.kv_heads,
    )


def _norms(module: nn.Module, model: str) -> dict[str, Any]:
    """The layer's norms, by the names among `NORMS` that it has most of."""
    present = [names for names in NORMS if all(_find_child(module, [name]) for name in names if name)]
    if not present:
        raise UnsupportedArchitecture(_cannot(model, f"{type(module).__name__} has no norms of known names"))
    names = max(present, key=lambda names: len({*names} - {None}))
    norms = {attribute: name and _find_child(module, [name]) for attribute, name in names._asdict().items()}
    return {attribute: None if isinstance(norm, nn.Identity) else norm for attribute, norm in norms.items()}


def _mlp_ends(module: nn.Module, model: str) -> tuple[nn.Module, nn.Module]:
    """The module that reads the MLP's input, and the one that returns its output."""
    mlp = _find_child(module, _MLP)
    if mlp is not None:
        return mlp, mlp
    first, last = (_find_child(module, [name]) for name in _MLP_ENDS)
    if first is None or last is None:
        raise UnsupportedArchitecture(_cannot(model, f"{type(module).__name__} has no MLP of a known name"))
    return first, last


def _cannot(model: str, reason: str) -> str:
    return f"{model}: {reason}, so its edges cannot be told apart; circuits of heads work (`edges=False`)"


@torch.no_grad()
def out_weights(attention: nn.Module) -> Tensor:  # -> [heads, d, D]
    """W_O of an attention module in training, adapters included: what its output projection does to unit vectors."""
    out: Any = _child(attention, _OUT, type(attention).__name__)
    gate: Any = attention.edge_gate
    units = torch.eye(gate.heads * gate.width, device=out.weight.device, dtype=out.weight.dtype)
    return (out(units) - out(torch.zeros_like(units[:1]))).float().unflatten(0, (gate.heads, -1))


def qkv_columns(attention: nn.Module, heads: int, kv_heads: int, d: int) -> dict[str, tuple[int, Tensor]]:
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
    if getattr(getattr(linear, "weight", None), "ndim", 0) != 2:
        raise UnsupportedArchitecture(_cannot(type(projection).__name__, "it is no linear map"))
    matrix = linear.weight if isinstance(projection, nn.Linear) else linear.weight.T  # GPT-2's Conv1D
    bias = getattr(linear, "bias", None)
    return matrix.detach(), None if bias is None else bias.detach()


def _find_child(module: nn.Module, names: Sequence[str]) -> nn.Module | None:
    children = (getattr(module, name, None) for name in names)
    return next((child for child in children if isinstance(child, nn.Module)), None)


def _child(module: nn.Module, names: Sequence[str], model: str) -> nn.Module:
    child = _find_child(module, names)
    if child is None:
        raise UnsupportedArchitecture(_cannot(model, f"{type(module).__name__} has no {' or '.join(names)}"))
    return child


def mlp_width(model: Any) -> int:
    """The width of the hidden layer of the MLPs; of the widest, where layers differ."""
    text = model.config.get_text_config()
    for name in ("intermediate_size", "n_inner"):
        given = getattr(text, name, None)
        widths = [
            width for width in (given if isinstance(given, list) else [given]) if isinstance(width, int)
        ]
        if any(widths):
            return max(widths)
    return 4 * text.hidden_size


def vocabulary_size(model: Any) -> int:
    """How many tokens the model computes logits of."""
    return len(model.get_output_embeddings().weight)
