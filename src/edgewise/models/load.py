"""Load models by name: dense models, sparse twins with their gates on, and the layout of the paper's authors."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.install import install
from edgewise.models.find import AUTHORS_FILE, ModelFiles, find_model
from edgewise.models.gate import gate
from edgewise.models.host import host_class, host_config, load_complete, load_host
from edgewise.models.lora import load_adapted_base
from edgewise.models.nanogpt import load_nanogpt
from edgewise.models.twin_format import ADAPTERS_KEY, GATE_KEY, TWIN_KEY, WEIGHTS_FILE, read_gate
from edgewise.models.weights import check_finite, read_weights


def load(
    name: str | Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Load a model by embedded name, folder or hub name, in eval mode: a dense model, or a sparse twin with its gates on.

    >>> model = edgewise.load("gpt2")          # dense, from the hub
    >>> twin = edgewise.load("runs/my-twin")   # sparse, saved by edgewise.save
    """
    files = find_model(name)
    if files.config is None:
        path = files.file(AUTHORS_FILE)
        assert path is not None
        model = gate(load_nanogpt(path), GateConfig("score", b=0.0))
        if dtype is not None:
            model = model.to(dtype)  # pyright: ignore
    elif TWIN_KEY in files.config:
        model = _load_twin(files, dtype)
    else:
        model = install(load_host(files, dtype))
    return (model if device is None else model.to(device)).eval()  # pyright: ignore


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer that belongs to a model, by the same names as `load`."""
    files = find_model(name)
    if files.config is None:  # the authors ship none: theirs is GPT-2's
        return load_tokenizer("gpt2")
    host = read_gate(files.name, files.config)[1] if TWIN_KEY in files.config else files.config
    config = host_config(host, files.name)
    try:
        return AutoTokenizer.from_pretrained(files.address, config=config)
    except Exception as error:  # somebody else's files: anything can be wrong with them
        raise EdgewiseError(
            f"{files.name} has no tokenizer that can be loaded: {first_line(error)}"
        ) from error


def _load_twin(files: ModelFiles, dtype: torch.dtype | None) -> PreTrainedModel:
    assert files.config is not None
    config, host = read_gate(files.name, files.config)
    folder = files.download()
    adapters = files.config[TWIN_KEY].get(ADAPTERS_KEY)
    if adapters is None:
        state = read_weights(files.name, folder, WEIGHTS_FILE)
        gate_state = {key: state.pop(key) for key in list(state) if GATE_KEY in key}
        typed = host_config(host, files.name)
        model = load_complete(files.name, host_class(typed), None, dtype, config=typed, state_dict=state)
    else:
        model, gate_state = load_adapted_base(files.name, folder, adapters)
        model = model if dtype is None else model.to(dtype)  # pyright: ignore
    model.name_or_path = model.config.name_or_path = files.address
    gate(model, config)
    _load_gates(files.name, model, gate_state)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def _load_gates(name: str, model: PreTrainedModel, state: dict[str, Tensor]) -> None:
    """Fill in the parameters of the gates, all of them."""
    if {key for key in model.state_dict() if GATE_KEY in key} != state.keys():
        raise EdgewiseError(
            f"{name}: the gates' parameters are not those of {len(gates_of(model))} layers; the folder is damaged"
        )
    check_finite(name, state)
    model.load_state_dict(state, strict=False)
