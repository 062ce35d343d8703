"""A model's sizes, from its config alone: its parts are built on the meta device, where weights take no memory."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models import find as sources
from edgewise.models.host import TWIN_KEY, host_config


@dataclass(frozen=True)
class Shape:
    """All that the cost of a stage depends on."""

    name: str
    parameters: int
    """N, weights that are shared counted once."""
    layers: int
    """L"""
    width: int
    """D, of the residual stream."""
    heads: int
    """H"""
    kv_heads: int
    head_width: int
    """d"""
    vocabulary: int
    """V"""
    context: int
    """The longest text; 0 if the model has no limit of its own."""
    linear: int
    """P, weights of the linear maps inside layers: each is multiplied with once for each token."""
    mlp: int
    """Those of them that are no attention's."""
    inner: int
    """I, width inside an MLP."""
    gated_mlp: bool
    """Whether an MLP has three linear maps (Llama) instead of two (GPT-2)."""
    sides: int
    """Inputs and outputs of these maps together: a LoRA adapter of rank r has r weights for each."""
    attention_sides: int
    """Those of attention's maps."""
    tied: bool
    """Whether the unembedding is the embedding."""
    bytes_each: int
    """Of a weight in the checkpoint, and so in the dense model."""

    @property
    def attention(self) -> int:
        """Weights of attention's linear maps."""
        return self.linear - self.mlp

    @property
    def attention_width(self) -> int:
        """H d: D in most models."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def unembedding(self) -> int:
        return self.vocabulary * self.width

    @property
    def edges(self) -> int:
        """Edges between components, as `circuits.edges.Wiring` counts them in a model whose MLPs come after attention."""
        sources_before = sum(1 + layer * (self.heads + 1) for layer in range(self.layers))
        into_layers = sources_before * (self.heads + 2 * self.kv_heads + 1) + self.layers * self.heads
        return into_layers + self.edge_sources  # the last ones into the logits

    @property
    def edge_sources(self) -> int:
        return 1 + self.layers * (self.heads + 1)

    @property
    def edge_targets(self) -> int:
        return 1 + self.layers * (self.heads + 2 * self.kv_heads + 1)


def find_shape(name: str | Path) -> Shape:
    """Of a dense model by shipped name, folder or hub name. Nothing but its config is read."""
    found = sources.find(name)
    if found.config is None or TWIN_KEY in found.config:
        raise EdgewiseError(f"{name} is a sparse twin already; start from the dense model")
    return shape_of(host_config(found.config, found.name), found.name)


def shape_of(config: PretrainedConfig, name: str) -> Shape:
    """Of any causal model of transformers."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # somebody else's config: anything can be wrong with it
        raise EdgewiseError(f"{name} cannot be built from its config: {first_line(error)}") from error
    text = model.config.get_text_config()
    if not hasattr(text, "num_attention_heads") or model.get_output_embeddings() is None:
        raise EdgewiseError(f"{type(model).__name__} has no attention heads or no unembedding to count")
    maps = {
        part: module.weight
        for part, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not model.get_output_embeddings()
    }
    if any(p.ndim > 2 for p in model.parameters()) or any(".experts." in part for part in maps):
        raise EdgewiseError(f"{name} is a mixture of experts, whose cost is not modelled")
    of_attention = {part for part in maps if "att" in part}  # attn, attention, self_attn
    of_mlps = [weight for part, weight in maps.items() if part not in of_attention]
    if not of_mlps:
        raise EdgewiseError(f"{name}: no MLP was found among its linear maps, so its cost cannot be told")
    layers, width, heads = text.num_hidden_layers, text.hidden_size, text.num_attention_heads
    mlp = sum(weight.numel() for weight in of_mlps)
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
        inner=mlp // (len(of_mlps) * width),
        gated_mlp=len(of_mlps) > 2 * layers,
        sides=sum(sum(weight.shape) for weight in maps.values()),
        attention_sides=sum(sum(maps[part].shape) for part in of_attention),
        tied=model.get_input_embeddings().weight is model.get_output_embeddings().weight,
        bytes_each=getattr(torch, str(config.dtype or "float32").removeprefix("torch.")).itemsize,
    )
