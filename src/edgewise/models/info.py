"""What a model is, told from its config and the headers of its weight files, without loading it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.gating.config import GATES, GateConfig
from edgewise.models import find as sources
from edgewise.models.checkpoint import listed_files, read_gate
from edgewise.models.host import TWIN_KEY, host_config
from edgewise.models.lora import ADAPTERS_FILE, ADAPTERS_KEY
from edgewise.models.nanogpt import load_nanogpt

_BLOCK_BYTES = 2 * (4 << 20)  # the gate's two buffers


@dataclass(frozen=True)
class ModelInfo:
    """The answer of `edgewise info`."""

    name: str
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    width: int
    context: int
    vocabulary: int
    parameters: int
    dtype: str
    gate: GateConfig | None
    forward_bytes: int
    """Weights and the largest activations of one text of full context, without gradients."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        kv = "" if self.kv_heads == self.heads else f" on {self.kv_heads} key/value heads"
        gate = (
            "dense"
            if self.gate is None
            else f"sparse, gate {self.gate.kind} (b = {self.gate.b:g}: {GATES[self.gate.kind].meaning}"
            + ("" if self.gate.sinks else "; never to a text's first token")
            + ("; attending to nothing has a value" if self.gate.null_value else "")
            + ")"
        )
        rows = [
            ("model", self.name),
            ("architecture", self.architecture),
            ("attention", f"{self.layers} layers x {self.heads} heads{kv}, {gate}"),
            ("width, context", f"{self.width}, {self.context} tokens, vocabulary {self.vocabulary:,}"),
            ("parameters", f"{self.parameters:,} ({self.dtype})"),
            (
                "a forward pass",
                f"about {self.forward_bytes / 2**20:,.0f} MB for one text of {self.context} tokens",
            ),
        ]
        return "\n".join(f"{label:<16}{text}" for label, text in rows)


def info(name: str | Path) -> ModelInfo:
    """Describe a model by shipped name, folder or hub name. Its weight files are checked for damage, not loaded."""
    found = sources.find(name)
    gate = None
    if found.config is None:
        path = found.file(sources.AUTHORS_FILE)
        assert path is not None
        model, gate = load_nanogpt(path), GateConfig("score", b=0.0)
        dtype = str(model.dtype)
    else:
        config = found.config
        if TWIN_KEY in config:
            gate, config = read_gate(found.name, config)
        if found.folder is not None:
            _check_files(found.name, found.folder, _weights_file(found.config))
        typed = host_config(config, found.name)
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(typed)
            dtype = str(typed.dtype or torch.float32)
        except Exception as error:  # somebody else's config: anything can be wrong with it
            raise EdgewiseError(
                f"{found.name} cannot be built from its config: {first_line(error)}"
            ) from error
        if not model._can_set_attn_implementation() or not hasattr(
            typed.get_text_config(), "num_attention_heads"
        ):
            raise EdgewiseError(
                f"{type(model).__name__} has no attention that goes through transformers' attention registry"
            )
    text = model.config.get_text_config()
    parameters = sum(p.numel() for p in model.parameters())
    if gate is not None and gate.learned:
        parameters += text.num_hidden_layers * text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if gate is not None and gate.null_value:
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        parameters += text.num_hidden_layers * kv_heads * width
    bytes_each = getattr(torch, dtype.removeprefix("torch.")).itemsize
    inner = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size
    context = getattr(text, "max_position_embeddings", 0)
    # at its widest a layer holds its input, norm and residual beside the MLP's two inner products; logits come in full
    activations = context * (6 * text.hidden_size + 2 * inner + text.vocab_size) * bytes_each
    return ModelInfo(
        name=found.name,
        architecture=type(model).__name__,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=kv_heads,
        width=text.hidden_size,
        context=context,
        vocabulary=text.vocab_size,
        parameters=parameters,
        dtype=dtype.removeprefix("torch."),
        gate=gate,
        forward_bytes=parameters * bytes_each + activations + _BLOCK_BYTES,
    )


def _weights_file(config: dict) -> str:
    """The file that a folder's weights are in, or that its index is called after."""
    if TWIN_KEY not in config:
        return "model.safetensors"
    return ADAPTERS_FILE if ADAPTERS_KEY in config[TWIN_KEY] else "twin.safetensors"


def _check_files(name: str, folder: Path, single: str) -> None:
    """A safetensors header says how long its file must be."""
    if single == "model.safetensors" and not list(folder.glob("*.safetensors*")):
        if not list(folder.glob("*.bin")):
            raise EdgewiseError(f"{name}: the folder holds a config but no weights")
        return
    files = listed_files(name, folder, single)
    for file in files:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise EdgewiseError(
                f"{name}: {file.name} is truncated or damaged ({error}); copy or download it again"
            ) from error
