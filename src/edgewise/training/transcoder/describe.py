"""Describe features of a saved transcoder: the contexts that activate them, and the tokens they promote."""

from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.devices import only_device
from edgewise.core.errors import EdgewiseError
from edgewise.core.quantities import token_count
from edgewise.models.load import load, load_tokenizer
from edgewise.training.transcoder.config import FeaturesConfig
from edgewise.training.transcoder.features import (
    Context,
    check_feature,
    feature_text,
    promoted_tokens,
    top_contexts,
)
from edgewise.training.transcoder.store import load_transcoder, read_info


class FeatureDescription(NamedTuple):
    """One feature."""

    layer: int
    feature: int
    contexts: list[Context]
    """Strongest first; empty if the feature is nowhere active in the text."""
    raised: list[tuple[str, float]]
    """Tokens whose logits it raises most, and by how much."""
    lowered: list[tuple[str, float]]


def describe_features(
    folder: str | Path,
    config: FeaturesConfig,
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
) -> list[FeatureDescription]:
    """Find where features are most active, and which tokens they make more likely.

    >>> describe_features("runs/transcoder", FeaturesConfig(layer=3, feature=(17,)))
    """
    folder = Path(folder)
    name = config.model or read_info(folder).model
    if model is None and not name:
        raise EdgewiseError(f"{folder} does not say which model it belongs to; give `model`")
    host = load(name, device=device, dtype=dtype) if model is None else model
    tokenizer = load_tokenizer(name) if tokenizer is None else tokenizer
    only_device(host, "a description of features")
    transcoder = load_transcoder(folder, host)
    features = [(config.layer, feature) for feature in config.feature]
    for layer, feature in features:
        check_feature(transcoder, layer, feature)
    batch = feature_text(name, config.data, token_count(config.tokens), tokenizer)
    if batch is None:
        raise EdgewiseError(
            f"{name} brings no text of its own; give `data`: a file, a folder or a dataset's name"
        )
    contexts = top_contexts(
        host, transcoder, batch, features, config.k, tokenizer=tokenizer, around=config.around
    )
    descriptions = []
    for layer, feature in features:
        promoted = promoted_tokens(host, transcoder, layer, feature, config.k)
        raised, lowered = (
            [(str(tokenizer.decode([token])).strip(), logit) for token, logit in tokens]
            for tokens in (promoted.raised, promoted.lowered)
        )
        descriptions.append(FeatureDescription(layer, feature, contexts[layer, feature], raised, lowered))
    return descriptions
