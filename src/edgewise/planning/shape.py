"""Sizes of a model, from its config alone: it is built on the meta device, where weights take no memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PretrainedConfig
from transformers.pytorch_utils import Conv1D

from edgewise.core.errors import EdgewiseError
from edgewise.models.empty import empty_model
from edgewise.models.find import find_model
from edgewise.models.host import dtype_of_config, host_config
from edgewise.models.twin_format import TWIN_KEY


@dataclass(frozen=True)
class Shape:
    """All that the cost of a stage depends on; capital letters are those of the formulas in `flops.py`."""

    name: str
    parameters: int  # N, shared weights counted once
    layers: int  # L
    width: int  # D, of the residual stream
    heads: int  # H
    kv_heads: int  # H_kv
    head_width: int  # d
    vocabulary: int  # V
    context: int  # tokens; 0 if the model has no limit
    linear: int  # P, weights of linear maps inside layers: each is multiplied with once per token
    mlp: int  # those of the MLPs
    inner: int  # I, width inside an MLP
    gated_mlp: bool  # three linear maps per MLP (Llama) instead of two (GPT-2)
    sides: int  # inputs and outputs of these maps together: a LoRA adapter of rank r has r weights for each
    attention_sides: int  # those of attention's maps
    tied: bool  # the unembedding is the embedding
    bytes_each: int  # of a weight in the checkpoint, and so in the dense model

    @property
    def attention(self) -> int:
        return self.linear - self.mlp

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def unembedding(self) -> int:
        return self.vocabulary * self.width

    @property
    def edges(self) -> int:
        """Edges between components as `circuits.wiring` counts them, where MLPs come after attention."""
        sources_before = sum(1 + layer * (self.heads + 1) for layer in range(self.layers))
        into_layers = sources_before * (self.heads + 2 * self.kv_heads + 1) + self.layers * self.heads
        return into_layers + self.edge_sources  # into the logits

    @property
    def edge_sources(self) -> int:
        return 1 + self.layers * (self.heads + 1)

    @property
    def edge_targets(self) -> int:
        return 1 + self.layers * (self.heads + 2 * self.kv_heads + 1)


def find_shape(name: str | Path) -> Shape:
    """The shape of a dense model by embedded name, folder or hub name; reads nothing but its config."""
    source = find_model(name)
    if source.config is None or TWIN_KEY in source.config:
        raise EdgewiseError(f"{name} is a sparse twin already; start from the dense model")
    return shape_of(host_config(source.config, source.name), source.name)


def shape_of(config: PretrainedConfig, name: str) -> Shape:
    """The shape of any causal language model of transformers."""
    model = _on_meta(config, name)
    text = model.config.get_text_config()
    maps = {
        path: module.weight
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not model.get_output_embeddings()
    }
    if any(p.ndim > 2 for p in model.parameters()) or any(".experts." in path for path in maps):
        raise EdgewiseError(f"{name} is a mixture of experts, whose cost is not modelled")
    attention = {path for path in maps if "att" in path}  # attn, attention, self_attn
    mlps = [weight for path, weight in maps.items() if path not in attention]
    if not mlps:
        raise EdgewiseError(f"{name} has no MLP among its linear maps, so its cost cannot be estimated")
    layers, width, heads = text.num_hidden_layers, text.hidden_size, text.num_attention_heads
    mlp = sum(weight.numel() for weight in mlps)
    return Shape(
        name=name,
        parameters=sum(p.numel() for p in model.parameters()),
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_width=getattr(text, "head_dim", None) or width // heads,
        vocabulary=text.vocab_size,
        context=getattr(text, "max_position_embeddings", 0) or 0,
        linear=sum(weight.numel() for weight in maps.values()),
        mlp=mlp,
        inner=mlp // (len(mlps) * width),
        gated_mlp=len(mlps) > 2 * layers,
        sides=sum(sum(weight.shape) for weight in maps.values()),
        attention_sides=sum(sum(maps[path].shape) for path in attention),
        tied=model.get_input_embeddings().weight is model.get_output_embeddings().weight,
        bytes_each=dtype_of_config(config).itemsize,
    )


def _on_meta(config: PretrainedConfig, name: str) -> Any:
    model: Any = empty_model(config, name)
    if (
        not hasattr(model.config.get_text_config(), "num_attention_heads")
        or model.get_output_embeddings() is None
    ):
        raise EdgewiseError(f"{type(model).__name__} has no attention heads or no unembedding to count")
    return model
