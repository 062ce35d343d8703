"""The text of a training: what the caller gives, or what an embedded model brings along."""

from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.data import HELD_OUT_TOKENS, Data, embedded_data, open_data
from edgewise.data.packing import Processes
from edgewise.models.load import load_tokenizer
from edgewise.models.registry import embedded_name, embedded_origin
from edgewise.training.config import TrainerConfig
from edgewise.training.sparsify.config import LONGEST_CONTEXT


class TextConfig(Protocol):
    @property
    def context(self) -> int | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def valid(self) -> tuple[str, ...] | None: ...


def known_name(model: str | Path | PreTrainedModel) -> str:
    """What the model is called, an embedded one by its own name; empty for one that was never loaded from anywhere."""
    name = (model.name_or_path or "") if isinstance(model, PreTrainedModel) else str(model)
    return embedded_name(name)


def tokenizer_for(name: str, data: Any) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a named model, if there is text to read with it or the model is an embedded one or its twin."""
    return load_tokenizer(name) if name and (data is not None or embedded_origin(name)) else None


def training_data(
    name: str,
    data: Any,
    config: TextConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    trainer: TrainerConfig | None = None,
    processes: Processes | None = None,
) -> Data:
    """Open `data` for a model; None is the own text of the embedded model `name`, a `Data` is taken as it is."""
    if isinstance(data, Data):
        return data
    own = getattr(model.config.get_text_config(), "max_position_embeddings", LONGEST_CONTEXT)
    if config.context is not None and config.context > own:
        raise EdgewiseError(f"`context={config.context}` is longer than the model's own context, {own}")
    if data is None:
        return _embedded_data(name, config)
    if tokenizer is None:
        raise EdgewiseError("reading text needs a tokenizer; give `tokenizer`, or the model by name")
    trainer = trainer or TrainerConfig()
    context = config.context or min(own, LONGEST_CONTEXT)
    tokens = trainer.slow_held_out_tokens if is_slow(model, trainer) else HELD_OUT_TOKENS
    return open_data(
        data, tokenizer, context, config.seed, valid=config.valid, held_out_tokens=tokens, processes=processes
    )


def _embedded_data(name: str, config: TextConfig) -> Data:
    embedded = embedded_data(name, config.seed)
    if embedded is None:
        raise EdgewiseError(
            f"{name or 'this model'} brings no text of its own; give `data`: a file, a folder or a dataset's name"
        )
    if config.context not in (None, embedded.train.context):
        raise EdgewiseError(
            f"{name}'s own text has sequences of {embedded.train.context} tokens; leave out `context`"
        )
    return embedded


def is_slow(model: PreTrainedModel, trainer: TrainerConfig) -> bool:
    """Whether measuring much held-out text would take minutes, before the first step and after the last."""
    return not torch.accelerator.is_available() and model.num_parameters() > trainer.slow_parameters
