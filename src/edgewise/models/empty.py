"""A model without memory for its weights, on the meta device: its sizes, before anything is allocated.

A config that says other sizes than the weights have would otherwise end the process: transformers allocates and initialises
what the files lack, and only then says that they do not fit.
"""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models.manifest import read_header
from edgewise.models.weights import weight_files

MAX_MODULES = 1 << 18
"""The largest mixtures of experts have a hundred thousand. Building more would take minutes, and millions hours."""
_SPARE, _FACTOR = 1 << 26, 1.25
"""What a model may lack of its weights before it is built: transformers says which ones, if a few are missing."""
_PACKED = 16
"""Weights in one number: two bits each, in 32."""
_WORKING_COPIES = 4
"""Memory that computing a table takes, in copies of the table."""
_LONGEST_TABLE = 1 << 20
"""Entries of a table of one dimension, such as the frequencies of a head's rotary embedding: each token is multiplied with
all of them. That of a model's positions may be longer than any dimension of its weights."""


def empty_model(config: PretrainedConfig, name: str, max_modules: int = MAX_MODULES) -> PreTrainedModel:
    """The causal model of a config, on the meta device."""
    try:
        with torch.device("meta"), _limited_modules(max_modules):
            return AutoModelForCausalLM.from_config(config)
    except Exception as error:  # somebody else's config: anything can be wrong with it
        raise EdgewiseError(f"{name} cannot be built from its config: {first_line(error)}") from error


@contextmanager
def _limited_modules(limit: int) -> Iterator[None]:
    """Stop a model that is built in this thread when it has more than `limit` modules."""
    built, thread = 0, threading.get_ident()

    def count(*_: Any) -> None:
        nonlocal built
        if threading.get_ident() == thread:
            built += 1
            if built > limit:
                raise ValueError(f"it has more than {limit:,} modules, which is taken for damage")

    hook = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def check_sizes(config: PretrainedConfig, name: str, weights: int | None) -> None:
    """Refuse a config that asks for more weights than there are, or for tables that no memory holds.

    Args:
        config: Of the model.
        name: For the error.
        weights: How many there are (`weights_in`); None if that is not known.
    """
    model = empty_model(config, name)
    n_configured = sum(parameter.numel() for parameter in model.parameters())
    if weights is not None and n_configured > _FACTOR * weights + _SPARE:
        raise EdgewiseError(
            f"{name}: config.json asks for {n_configured:,} weights, {_largest(model)} alone, and there are {weights:,}; "
            "one of its sizes is wrong, or a file is missing"
        )
    longest = max((len(table) for table in model.buffers() if table.ndim == 1), default=0)
    if longest > _LONGEST_TABLE:
        raise EdgewiseError(
            f"{name}: config.json asks for a table of {longest:,} numbers, such as the frequencies of one head; at most "
            f"{_LONGEST_TABLE:,} are taken for meant"
        )
    tables, memory = _bytes(model.buffers()), psutil.virtual_memory().total
    if tables * _WORKING_COPIES > memory:
        raise EdgewiseError(
            f"{name}: config.json asks for tables of {tables / 2**30:,.0f} GiB beside the weights, of positions for one; "
            f"this machine has {memory / 2**30:,.0f} GiB"
        )


def weights_in(name: str, folder: Path) -> int | None:
    """How many weights a folder's files hold, at most where several may be packed into one number; None without files."""
    if (single := folder / "model.safetensors").is_file():
        files = [single]
    elif (folder / "model.safetensors.index.json").is_file():
        files = weight_files(name, folder, "model.safetensors")
    else:
        return sum(_PACKED * path.stat().st_size for path in folder.glob("*.bin")) or None
    entries = [entry for file in files for entry in read_header(file).values()]
    return sum(math.prod(entry.shape) * (1 if "F" in entry.dtype else _PACKED) for entry in entries)


def weights_of(state: Mapping[str, Tensor]) -> int:
    """How many weights tensors hold."""
    return sum(tensor.numel() for tensor in state.values())


def _largest(model: nn.Module) -> str:
    name, weight = max(model.named_parameters(), key=lambda item: item[1].numel())
    return f"{math.prod(weight.shape):,} in {name}"


def _bytes(tensors: Iterator[Tensor]) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)
