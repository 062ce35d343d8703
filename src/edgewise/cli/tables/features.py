"""Features of a transcoder: their contexts with activations marked, and the tokens they promote."""

from collections.abc import Sequence

from rich.text import Text

from edgewise.cli.tables.output import Output
from edgewise.training.transcoder.describe import FeatureDescription

_STRONGEST, _ACTIVE = "bold black on yellow", "underline"


def print_features(descriptions: Sequence[FeatureDescription]) -> None:
    """Print each feature: its contexts, the strongest token highlighted, other active ones underlined; promoted tokens."""
    output = Output()
    for description in descriptions:
        _print_feature(output, description)


def _print_feature(output: Output, description: FeatureDescription) -> None:
    contexts = description.contexts
    output.print(f"layer {description.layer}, feature {description.feature}", style="bold", highlight=False)
    if not contexts:
        output.print_plain("  active nowhere in this text")
    tokens = [token for context in contexts for token in context.tokens]
    spaced = any(" " in token or token.startswith(("Ġ", "▁")) for token in tokens)
    for context in contexts:
        line = Text(f"{context.activation:8.2f}  ")
        for i, (token, activation) in enumerate(zip(context.tokens, context.activations, strict=True)):
            style = _STRONGEST if i == context.peak else _ACTIVE if activation > 0 else ""
            line.append(token.replace("\n", "↵"), style)
            line.append("" if spaced else " ")
        output.print(line, soft_wrap=True)
    for label, promoted in (("raises", description.raised), ("lowers", description.lowered)):
        output.print_plain(f"  {label}  " + "  ".join(f"{token} {logit:+.2f}" for token, logit in promoted))
