"""Describe a model by its config and the headers of its weight files, without loading it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.config import GATES, GateConfig
from edgewise.gating.probe import check_requests
from edgewise.models.architecture import mlp_width
from edgewise.models.empty import empty_model
from edgewise.models.find import AUTHORS_FILE, ModelFiles, find_model
from edgewise.models.host import dtype_of_config, host_config
from edgewise.models.manifest import read_header
from edgewise.models.nanogpt import load_nanogpt
from edgewise.models.twin_format import TWIN_KEY, read_gate
from edgewise.models.weights import refuse_overwritten_twin, twin_files, weight_files

_GATE_BUFFER_BYTES = 2 * (4 << 20)


@dataclass(frozen=True)
class ModelInfo:
    """Architecture, sizes and gate of a model."""

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
    """Weights and the largest activations of one sequence of full context, without gradients."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        kv = "" if self.kv_heads == self.heads else f" on {self.kv_heads} key/value heads"
        gate = (
            "dense"
            if self.gate is None
            else f"sparse, gate {self.gate.kind} (b = {self.gate.b:g}: {GATES[self.gate.kind].meaning}"
            + ("" if self.gate.sinks else "; never to a text's first token")
            + ("; closed attention mass reads a null value" if self.gate.null_value else "")
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
    """Describe a model by embedded name, folder or hub name. Its weight files are checked for damage, not loaded."""
    files = find_model(name)
    if files.config is None:
        path = files.file(AUTHORS_FILE)
        assert path is not None
        model, gate = load_nanogpt(path), GateConfig("score", b=0.0)
        dtype = model.dtype
    else:
        gate, config = (
            read_gate(files.name, files.config) if TWIN_KEY in files.config else (None, files.config)
        )
        if files.folder is not None:
            _check_weights(files.name, files.folder, files.config)
        model, dtype = _empty_model(files, host_config(config, files.name))
    text = model.config.get_text_config()
    parameters = sum(p.numel() for p in model.parameters()) + _gate_parameters(gate, text)
    context = getattr(text, "max_position_embeddings", 0)
    # at its widest a layer holds its input, norm and residual beside the MLP's two inner products; logits come in full
    activations = context * (6 * text.hidden_size + 2 * mlp_width(model) + text.vocab_size) * dtype.itemsize
    return ModelInfo(
        name=files.name,
        architecture=type(model).__name__,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=_kv_heads(text),
        width=text.hidden_size,
        context=context,
        vocabulary=text.vocab_size,
        parameters=parameters,
        dtype=str(dtype).removeprefix("torch."),
        gate=gate,
        forward_bytes=parameters * dtype.itemsize + activations + _GATE_BUFFER_BYTES,
    )


def _empty_model(files: ModelFiles, config: PretrainedConfig) -> tuple[PreTrainedModel, torch.dtype]:
    """The model on the meta device, where weights take no memory, and the dtype of its checkpoint."""
    model = empty_model(config, files.name)
    has_heads = hasattr(config.get_text_config(), "num_attention_heads")
    if not model._can_set_attn_implementation() or not has_heads:
        raise EdgewiseError(
            f"{type(model).__name__} has no attention that goes through transformers' attention registry"
        )
    check_requests(model)
    return model, dtype_of_config(config)


def _kv_heads(text: Any) -> int:
    return getattr(text, "num_key_value_heads", None) or text.num_attention_heads


def _gate_parameters(gate: GateConfig | None, text: Any) -> int:
    """Learned thresholds, one a head, and null values, one vector a key/value head."""
    if gate is None:
        return 0
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    per_layer = gate.learned * text.num_attention_heads + gate.null_value * _kv_heads(text) * width
    return text.num_hidden_layers * per_layer


def _check_weights(name: str, folder: Path, config: dict[str, Any]) -> None:
    """Refuse truncated files, which their headers tell, and a twin that is not as it was saved."""
    if TWIN_KEY in config:
        twin_files(name, folder, checksums=False)
        return
    refuse_overwritten_twin(name, folder)
    if not list(folder.glob("*.safetensors*")):
        if not list(folder.glob("*.bin")):
            raise EdgewiseError(f"{name}: the folder holds a config but no weights")
        return
    for path in weight_files(name, folder, "model.safetensors"):
        read_header(path)
