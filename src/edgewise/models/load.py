"""Load models by name: dense models, sparse twins with their gates on, and the layout of the paper's authors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from edgewise.core.devices import device_of, dtype_of, one_device
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.threads import use_free_cores
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.install import install
from edgewise.models.compact import load_compact
from edgewise.models.empty import check_sizes, weights_of
from edgewise.models.find import AUTHORS_FILE, ModelFiles, find_model
from edgewise.models.gate import gate
from edgewise.models.host import host_class, host_config, load_complete, load_host
from edgewise.models.lora import load_adapted_base
from edgewise.models.nanogpt import load_nanogpt
from edgewise.models.twin_format import (
    ADAPTERS_KEY,
    GATE_KEY,
    TWIN_KEY,
    KeptHeads,
    read_gate,
    read_kept_heads,
)
from edgewise.models.weights import check_finite, read_twin_weights, refuse_overwritten_twin

_LOADING = RLock()
"""transformers changes global state while it builds a model, so that threads would find each other's."""
AUTHORS_GATE = GateConfig("score", b=0.0)
"""How the paper's authors evaluate their checkpoints."""


def load(
    name: str | Path,
    *,
    device: str | torch.device | None = "cpu",
    dtype: str | torch.dtype | None = "auto",
    verify: bool = True,
) -> PreTrainedModel:
    """Load a model by embedded name, folder or hub name, in eval mode: a dense model, or a sparse twin with its gates on.

    `device` may be "auto", a GPU if there is one, or "split", which spreads a model over all GPUs and main memory; `dtype`
    "auto" is the checkpoint's own.

    >>> model = edgewise.load("gpt2")          # dense, from the hub
    >>> twin = edgewise.load("runs/my-twin")   # sparse, saved by edgewise.save

    A twin's files are compared with the manifest that was saved with them: gate, tensors, checksums. `verify=False` opens a
    twin that was edited on purpose.
    """
    if device == "split":
        return load_files(find_model(name), dtype_of(dtype), verify, device_map="auto").eval()
    target, precision = device_of(device), dtype_of(dtype)  # refused before the model is loaded
    return load_files(find_model(name), precision, verify).to(target).eval()  # pyright: ignore


def load_files(
    files: ModelFiles, dtype: torch.dtype | str | None = None, verify: bool = True, **placement: Any
) -> PreTrainedModel:
    """Load the model whose files were found. `placement` goes to transformers: `device_map`, `quantization_config`, ..."""
    use_free_cores()
    with _LOADING, _no_progress_bars():
        return _load(files, dtype, verify, placement)


def _load(
    files: ModelFiles, dtype: torch.dtype | str | None, verify: bool, placement: dict[str, Any]
) -> PreTrainedModel:
    if files.config is None:
        path = files.file(AUTHORS_FILE)
        assert path is not None
        host = load_nanogpt(path)
        return gate(_place(files.name, host, host.dtype if dtype is None else dtype, placement), AUTHORS_GATE)
    if TWIN_KEY in files.config:
        return _load_twin(files, dtype, verify, placement)
    refuse_overwritten_twin(files.name, files.folder)
    return install(load_host(files, dtype, **placement))


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Without transformers' own bars, one for each model that is loaded."""
    was_enabled = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            enable_progress_bar()


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer that belongs to a model, by the same names as `load`."""
    files = find_model(name)
    if files.config is None:  # the authors ship none: theirs is GPT-2's
        return load_tokenizer("gpt2")
    adapters = (files.config.get(TWIN_KEY) or {}).get(ADAPTERS_KEY)
    folder = Path(files.address)
    if adapters is not None and folder.is_dir() and not (folder / "tokenizer_config.json").is_file():
        return load_tokenizer(adapters["base"])
    host = read_gate(files.name, files.config)[1] if TWIN_KEY in files.config else files.config
    config = host_config(host, files.name)
    try:
        return AutoTokenizer.from_pretrained(files.address, config=config)
    except Exception as error:  # somebody else's files: anything can be wrong with them
        raise EdgewiseError(
            f"{files.name} has no tokenizer that can be loaded: {first_line(error)}"
        ) from error


def _load_twin(
    files: ModelFiles, dtype: torch.dtype | str | None, verify: bool, placement: dict[str, Any]
) -> PreTrainedModel:
    assert files.config is not None
    config, host = read_gate(files.name, files.config)
    folder = files.download()
    state = read_twin_weights(files.name, folder, verify)
    if (kept := read_kept_heads(files.name, files.config)) is not None:
        return _load_compact(files, kept, state, dtype, placement)
    gate_state = {key: state.pop(key) for key in list(state) if GATE_KEY in key}
    adapters = files.config[TWIN_KEY].get(ADAPTERS_KEY)
    if adapters is None:
        typed = host_config(host, files.name)
        check_sizes(typed, files.name, weights_of(state))
        model = _build(files.name, typed, state, dtype, placement)
    else:
        hub = replace(files.hub, revision=None, subfolder="")  # those of the twin, not of its base
        model = load_adapted_base(files.name, folder, adapters, state, hub)
        model = _place(files.name, model, dtype, placement)
    model.name_or_path = model.config.name_or_path = files.address
    gate(model, config)
    _load_gates(files.name, model, gate_state)
    if (folder / "generation_config.json").is_file():
        try:
            model.generation_config = GenerationConfig.from_pretrained(folder)
        except Exception as error:  # a file that anybody may have edited
            raise EdgewiseError(
                f"{files.name}: generation_config.json cannot be read: {first_line(error)}"
            ) from error
    return model


def _load_compact(
    files: ModelFiles,
    kept: KeptHeads,
    state: dict[str, Tensor],
    dtype: torch.dtype | str | None,
    placement: dict[str, Any],
) -> PreTrainedModel:
    """A compacted twin; it is small, and stays whole on the device that it is moved to."""
    assert files.config is not None
    device = one_device(placement.get("device_map"), "a compacted twin")
    if placement.get("quantization_config") is not None:
        raise EdgewiseError(
            f"{files.name} is a compacted twin, which is not quantised; leave out `quantization_config`"
        )
    config, host = read_gate(files.name, files.config)
    typed = host_config(host, files.name)
    check_sizes(typed, files.name, None)  # the host has more heads than the files
    model = load_compact(files.name, typed, config, kept, state)
    own = typed.dtype or torch.float32
    precision = own if dtype in (None, "auto") else dtype
    model = model.to(device, getattr(torch, precision) if isinstance(precision, str) else precision)  # pyright: ignore
    model.name_or_path = model.config.name_or_path = files.address
    return model


def _build(
    name: str,
    config: PretrainedConfig,
    state: dict[str, Tensor],
    dtype: torch.dtype | str | None,
    placement: dict[str, Any],
) -> PreTrainedModel:
    return load_complete(name, host_class(config), None, dtype, config=config, state_dict=state, **placement)


def _place(
    name: str, model: PreTrainedModel, dtype: torch.dtype | str | None, placement: dict[str, Any]
) -> PreTrainedModel:
    """A model that is in memory already, in another precision or place; itself if it may stay as it is."""
    if not placement and dtype in (None, "auto", model.dtype):
        return model
    dtype = model.dtype if dtype in (None, "auto") else dtype
    return _build(name, model.config, model.state_dict(), dtype, placement)


def _load_gates(name: str, model: PreTrainedModel, state: dict[str, Tensor]) -> None:
    """Fill in the parameters of the gates, all of them."""
    if {key for key in model.state_dict() if GATE_KEY in key} != state.keys():
        raise EdgewiseError(
            f"{name}: the gates' parameters are not those of {len(gates_of(model))} layers; the folder is damaged"
        )
    check_finite(name, state)
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise EdgewiseError(f"{name}: the gates' parameters do not fit: {first_line(error)}") from error
