"""Where post-training starts from: the dense model with open gates, or a sparse twin of it."""

import copy
from dataclasses import dataclass

from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import gate_config, kept_heads
from edgewise.models.gate import gate
from edgewise.models.load import load
from edgewise.models.lora import Adapters, read_adapters
from edgewise.models.twin_format import GATE_KEY
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.recipe import Recipe


@dataclass(frozen=True)
class Start:
    """The model that is trained, before its first step."""

    model: PreTrainedModel
    """In float32 (updates would be lost in the rounding of bfloat16), with gates; without its adapters, where these are
    trained."""
    gate: GateConfig
    adapters: Adapters | None = None


def start_of(dense: PreTrainedModel, recipe: Recipe, config: SparsifyConfig) -> Start:
    """A gated copy of the dense model, or the twin `start_from`."""
    if config.start_from is not None:
        return _start_from(config.start_from, dense, config)
    kind = recipe.gate_config(config.gate, config.b, config.sinks)
    return Start(gate(copy.deepcopy(dense).float(), kind), kind)  # pyright: ignore


def _start_from(name: str, dense: PreTrainedModel, config: SparsifyConfig) -> Start:
    twin = load(name).float()  # pyright: ignore
    kind = gate_config(twin)
    if kind is None:
        raise EdgewiseError(
            f"`start_from`: {name} is a dense model; give it as `model`, and leave out `start_from`"
        )
    if kept_heads(twin) is not None:
        raise EdgewiseError(f"`start_from`: {name} is compacted; start from the twin that it was made of")
    if config.gate not in (None, kind.kind) or config.b is not None or not (config.sinks or not kind.sinks):
        raise EdgewiseError(f"`start_from`: the gate is that of {name}; leave out `gate`, `b` and `sinks`")
    _check_same_shape(dense, twin, name)
    if config.lora is None:
        return Start(twin, kind)
    adapters = read_adapters(name, dense)
    if adapters.rank != config.lora:
        raise EdgewiseError(f"the adapters of {name} have rank {adapters.rank}, not `lora={config.lora}`")
    return Start(_with_weights_of(dense, twin), kind, adapters)


def _with_weights_of(dense: PreTrainedModel, twin: PreTrainedModel) -> PreTrainedModel:
    """The dense model's weights with the twin's gates."""
    weights = {key: weight for key, weight in dense.state_dict().items() if GATE_KEY not in key}
    twin.load_state_dict(weights, strict=False)
    return twin


def _check_same_shape(dense: PreTrainedModel, twin: PreTrainedModel, name: str) -> None:
    def shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
        return {key: tuple(p.shape) for key, p in model.named_parameters() if GATE_KEY not in key}

    if shapes(dense) != shapes(twin):
        raise EdgewiseError(
            f"`start_from`: {name} is no twin of this model: its weights have other names or shapes"
        )
