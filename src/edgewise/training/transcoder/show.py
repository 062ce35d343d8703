"""`edgewise features`: a transcoder's features on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.models.checkpoint import load, load_tokenizer
from edgewise.training.sparsify.config import count
from edgewise.training.transcoder.config import FeaturesConfig
from edgewise.training.transcoder.features import (
    Context,
    PromotedTokens,
    check_feature,
    contexts_for,
    feature_text,
    promoted_tokens,
)
from edgewise.training.transcoder.store import load_transcoder, read_info

_STRONG, _WEAK = "bold black on yellow", "underline"


def show_features(
    folder: str | Path,
    config: FeaturesConfig,
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Print where features are most active, and which tokens they make likelier.

    >>> show_features("runs/transcoder", FeaturesConfig(layer=3, feature=(17,)))
    """
    folder = Path(folder)
    name = config.model or read_info(folder).model
    if model is None and not name:
        raise EdgewiseError(f"{folder} does not say which model it belongs to; name it with --model")
    host = load(name) if model is None else model
    tokenizer = load_tokenizer(name) if tokenizer is None else tokenizer
    transcoder = load_transcoder(folder, host)
    wanted = [(config.layer, feature) for feature in config.feature]
    for layer, feature in wanted:
        check_feature(transcoder, layer, feature)
    batch = feature_text(name, config.data, count(config.tokens), tokenizer)
    if batch is None:
        raise EdgewiseError(
            f"{name} brings no text of its own; give --data: a file, a folder or a dataset's name"
        )
    found = contexts_for(host, transcoder, batch, wanted, config.k, tokenizer=tokenizer, around=config.around)
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no width to fit
    for layer, feature in wanted:
        promoted = promoted_tokens(host, transcoder, layer, feature, config.k)
        print_feature(console, layer, feature, found[layer, feature], promoted, tokenizer)


def print_feature(
    console: Console,
    layer: int,
    feature: int,
    contexts: Sequence[Context],
    promoted: PromotedTokens,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """One feature: its contexts, the strongest token marked, weaker ones underlined; then what it promotes."""
    console.print(f"layer {layer}, feature {feature}", style="bold", highlight=False)
    if not contexts:
        console.print("  active nowhere in this text", highlight=False)
    spaced = any(" " in token or token.startswith(("Ġ", "▁")) for each in contexts for token in each.tokens)
    for context in contexts:
        line = Text(f"{context.activation:8.2f}  ")
        for i, (token, activation) in enumerate(zip(context.tokens, context.activations, strict=True)):
            style = _STRONG if i == context.peak else _WEAK if activation > 0 else ""
            line.append(token.replace("\n", "↵"), style)
            line.append("" if spaced else " ")
        console.print(line, soft_wrap=True)
    for label, tokens in (("raises", promoted.raised), ("lowers", promoted.lowered)):
        words = "  ".join(f"{str(tokenizer.decode([token])).strip()} {logit:+.2f}" for token, logit in tokens)
        console.print(f"  {label}  {words}", highlight=False, markup=False, soft_wrap=True)
