"""The caption of the attribution diagram: what a reader needs who meets the picture without its context."""

from collections.abc import Sequence

from edgewise.core.text import visible
from edgewise.plots.canvas import percent, pooled
from edgewise.plots.trace_heads import CarryingHeads
from edgewise.plots.trace_layout import WordLayout
from edgewise.tracing.word_clusters import word_clusters


def caption(panels: Sequence[CarryingHeads], layout: WordLayout, side: float) -> list[str]:
    """Three paragraphs: the maps, which are `side` points wide; boxes and arrow; the prompt."""
    return [_maps(panels, side), _words(panels[-1], layout), _prompt(panels, layout)]


def _maps(panels: Sequence[CarryingHeads], side: float) -> str:
    trace, key, query, share = panels[-1].trace, panels[-1].key, panels[-1].query, panels[-1].share
    names = " and ".join(visible(heads.title, 60) for heads in panels)
    direction = "up" if panels[-1].up else "down"
    from_key, to_query = (f"{p + 1} “{visible(trace.tokens[p])}”" for p in (key, query))
    text = (
        f"Attention maps of the fewest heads of {names} that carry {100 * share:.4g}% of the attribution through attention "
        f"from key {from_key} to query {to_query}, most important first. Query {direction}, key right; white 0 to dark blue "
        "1. Red: that query and key; filled if the head maps one to the other, that is, if the query gives "
        "this key more weight than any other."
    )
    return text + (
        " A dot may be the darkest of several cells." if pooled(len(trace.tokens), side) > 1 else ""
    )


def _words(heads: CarryingHeads, layout: WordLayout) -> str:
    trace, key = heads.trace, heads.key
    boxes, text = sum(bool(box.lines) for box in layout.boxes), ""
    if boxes:
        text += f"Boxes: {boxes} of {len(word_clusters(trace))} words to which features respond (lines), with their layers"
        text += "; grey arrows: what the output takes straight from one. " if layout.has_grey_arrows else ". "
    word = visible(trace.tokens[key])
    text += (
        f"The heads drawn carry {percent(heads.carried)} of the attribution through attention from “{word}” to the last "
        "token. Below each token: the share of the output that is attributed to its embedding, not counting what is "
        "attributed to reconstruction errors"
    )
    errors = trace.metrics.get("influence_of_errors")
    return text + (f", {percent(errors)} of all." if errors is not None else ".")


def _prompt(panels: Sequence[CarryingHeads], layout: WordLayout) -> str:
    trace = panels[-1].trace
    transcoders = [*dict.fromkeys(visible(heads.trace.transcoder, 40) for heads in panels)]
    shown, count = len(layout.words.labels), len(trace.tokens)
    text = f"Prompt ({count} tokens): “{visible(trace.prompt, 160)}”. "
    text += (
        f"Shown are the {shown} tokens to which most of the output is attributed. " if shown < count else ""
    )
    return f"{text}Transcoder{'s' * (len(transcoders) > 1)}: {', '.join(transcoders)}."
