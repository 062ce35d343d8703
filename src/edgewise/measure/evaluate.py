"""Evaluate models side by side on the same held-out text (`edgewise eval`)."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import Context, Tokens, check_argument
from edgewise.data import Batch, held_out_only
from edgewise.measure.evaluation import Evaluation
from edgewise.measure.forward import evaluation_bytes, sequences_per_pass
from edgewise.measure.loss import Measured, measure
from edgewise.measure.memory import projected_peak
from edgewise.measure.reference import Reference
from edgewise.measure.sinks import SINK_TOKENS, measure_sinks
from edgewise.models.architecture import vocabulary_size
from edgewise.models.find import find_model
from edgewise.models.loaded import LoadedModels, ModelsLike, load_models, model_names, model_paths
from edgewise.models.registry import embedded_origin

TOKENS = 65_536
_LONGEST_CONTEXT = 1024
"""Tokens of a sequence where `context` says nothing, at most."""


def evaluate_models(
    models: ModelsLike,
    data: Any = None,
    *,
    context: Context | None = None,
    tokens: Tokens = TOKENS,
    sinks: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    display: Display | None = None,
) -> Evaluation:
    """Measure one model, or a dense model and its twin, on the same text; the second also against the first: loss
    difference, its standard error, KL divergence.

    >>> evaluation = edgewise.evaluate_models(["pocket", "pocket-sparse"])
    >>> evaluation["pocket-sparse"].density

    Args:
        models: One or two names, folders or loaded models.
        data: Files, folders or a dataset's name, see `edgewise.data`; embedded models bring their own text.
        context: Tokens of a sequence; the shortest of the models' contexts if not given, at most 1024.
        tokens: How much of the data to read.
        sinks: Also measure the attention to first tokens.
        tokenizer: Required with loaded models.
        device: Where to load to, see `load_models`.
        dtype: In which precision; "auto" is the checkpoint's own.
        display: Where progress and the projected peak memory are shown; nowhere if not given.
    """
    check_argument("context", context, Context | None)
    check_argument("tokens", tokens, Tokens)
    own_text = _embedded_text(models, tokens) if data is None else None
    loaded = load_models(models, tokenizer=tokenizer, device=device, dtype=dtype, display=display)
    batch = own_text or _given_text(loaded, data, context, tokens)
    results: dict[str, Measured] = {}
    reference = Reference(loaded.models[0])
    for name, model in zip(loaded.names, loaded.models, strict=True):
        peak = projected_peak(evaluation_bytes(model, batch))
        loaded.display.print(f"{name}: memory about {peak / 2**30:.1f} GB in all")
        compared = bool(results) and vocabulary_size(model) == vocabulary_size(loaded.models[0])
        with nullcontext() if results else reference.recording():
            results[name] = _measure(model, name, batch, loaded.display, reference if compared else None)
        if sinks:
            sample = batch.select(slice(max(1, SINK_TOKENS // batch.ids.shape[1])))
            results[name] = replace(results[name], sinks=measure_sinks(model, sample))
    return Evaluation(results)


def _measure(
    model: PreTrainedModel, name: str, batch: Batch, display: Display, reference: Reference | None
) -> Measured:
    at_once = sequences_per_pass(batch, vocabulary_size(model) * (1 if reference is None else 2))
    with display.bar(name, -(-len(batch.ids) // at_once)) as advance:
        return measure(model, batch, batch_size=at_once, progress=lambda: advance(1), reference=reference)


def _given_text(loaded: LoadedModels, data: Any, context: int | None, tokens: int) -> Batch:
    longest = loaded.context or _LONGEST_CONTEXT
    if context is not None and context > longest:
        raise EdgewiseError(f"`context` {context} is longer than the models' own context, {longest}")
    return held_out_only(data, loaded.tokenizer, context or min(longest, _LONGEST_CONTEXT), tokens=tokens)


def _embedded_text(models: ModelsLike, tokens: int) -> Batch:
    """Held-out text of the embedded model that all of the models are, or were made from."""
    origins = {name: embedded_origin(name) for name in model_names(models)}
    for name, origin in origins.items():
        if origin is None:
            if name in model_paths(models):
                find_model(name)  # says so if there is no such model
            raise EdgewiseError(
                f"{name} brings no text of its own; give `data`: a file, a folder or a dataset's name"
            )
    dense = {origin.name: origin for origin in origins.values() if origin is not None}
    if len(dense) > 1:
        raise EdgewiseError(f"{' and '.join(dense)} know different texts; evaluate them one by one")
    data = next(iter(dense.values())).data()
    return data.held_out.select(slice(max(1, tokens // data.train.context)))
