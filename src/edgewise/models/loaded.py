"""Models that are analysed together: loaded once, with the one tokenizer they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gate_config
from edgewise.models.expand import with_all_heads
from edgewise.models.load import load, load_tokenizer
from edgewise.models.registry import embedded_name

Model = str | Path | PreTrainedModel
"""A name (see `edgewise.load`), a folder, or a loaded model."""


@dataclass(frozen=True)
class LoadedModels:
    """One model, or a dense model and its sparse twin: what every analysis takes."""

    names: tuple[str, ...]
    models: tuple[PreTrainedModel, ...]
    tokenizer: PreTrainedTokenizerBase
    display: Display

    @property
    def kinds(self) -> list[Literal["dense", "sparse"]]:
        """Whether each model has gates."""
        return ["dense" if gate_config(model) is None else "sparse" for model in self.models]

    @property
    def context(self) -> int | None:
        """Tokens that all of the models can read, None if nothing limits them."""
        contexts = [
            getattr(model.config.get_text_config(), "max_position_embeddings", None) for model in self.models
        ]
        return min((context for context in contexts if context is not None), default=None)

    def __len__(self) -> int:
        return len(self.models)


ModelsLike = Model | Sequence[Model] | LoadedModels
"""What analyses take for `models`."""


def load_models(
    models: ModelsLike,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    display: Display | None = None,
) -> LoadedModels:
    """Load one or two models for an analysis; models that are loaded already stay as they are.

    Args:
        models: One or two names, folders or loaded models, the dense one first.
        tokenizer: Required with loaded models; for names, their own.
        device: Where to load to: "cpu", "cuda:1"; "auto" is a GPU if there is one, "split" spreads each model over all GPUs
            and main memory.
        dtype: In which precision, "bfloat16"; "auto" is the checkpoint's own.
        display: Where progress is shown; nowhere if not given.
    """
    if isinstance(models, LoadedModels):
        return models
    listed, names = _as_list(models), model_names(models)
    display = display or Display(quiet=True)
    with display.status("loading"):
        tokenizer = tokenizer or shared_tokenizer(listed)
        loaded = tuple(
            with_all_heads(
                model if isinstance(model, PreTrainedModel) else load(model, device=device, dtype=dtype)
            )
            for model in listed
        )
    return LoadedModels(names, loaded, tokenizer, display)


def model_names(models: ModelsLike) -> tuple[str, ...]:
    """What models are called in results: as they were given, or what loaded ones say of themselves."""
    if isinstance(models, LoadedModels):
        return models.names
    return tuple(name_of(model, position) for position, model in enumerate(_as_list(models)))


def model_paths(models: ModelsLike) -> list[str]:
    """Those of the models that were given by name or folder."""
    if isinstance(models, LoadedModels):
        return []
    return [str(model) for model in _as_list(models) if not isinstance(model, PreTrainedModel)]


def _as_list(models: Model | Sequence[Model]) -> list[Model]:
    listed = [models] if isinstance(models, str | Path | PreTrainedModel) else list(models)
    if not 1 <= len(listed) <= 2:
        raise EdgewiseError(f"give one model, or a dense model and its twin, not {len(listed)}")
    return listed


def shared_tokenizer(models: Sequence[Model]) -> PreTrainedTokenizerBase:
    """The one tokenizer of models that are compared, by their names."""
    names = [model for model in models if isinstance(model, str | Path)]
    if len(names) != len(models):
        raise EdgewiseError(
            "with loaded models, pass their tokenizer: tokenizer=edgewise.load_tokenizer(...)"
        )
    first, *others = (load_tokenizer(name) for name in names)
    for name, other in zip(names[1:], others, strict=True):
        if other.get_vocab() != first.get_vocab():
            raise EdgewiseError(
                f"{names[0]} and {name} have different tokenizers: they read different tokens and cannot be compared"
            )
    return first


def name_of(model: Model, position: int) -> str:
    """What a model is called in results: as it was given, or what a loaded one says of itself."""
    if isinstance(model, PreTrainedModel):
        return embedded_name(model.config.name_or_path or "") or f"model {position + 1}"
    return str(model)
