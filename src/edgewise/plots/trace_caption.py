"""The caption of the attribution diagram: what a reader needs who meets the picture without its context."""

from collections.abc import Sequence

from edgewise.core.text import visible
from edgewise.plots.canvas import percent, pooled
from edgewise.plots.trace_boxes import key_positions, key_share
from edgewise.plots.trace_heads import CarryingHeads
from edgewise.plots.trace_layout import WordLayout


def caption(panels: Sequence[CarryingHeads], layout: WordLayout, side: float) -> list[str]:
    """Three paragraphs: the maps, which are `side` points wide; boxes and arrow; the prompt."""
    return [_maps(panels, side), _words(panels[-1], layout), _prompt(panels, layout)]


def _maps(panels: Sequence[CarryingHeads], side: float) -> str:
    trace, key, query, share = panels[-1].trace, panels[-1].key, panels[-1].query, panels[-1].share
    names = " and ".join(visible(heads.title, 60) for heads in panels)
    from_key, to_query = (f"{p + 1} “{visible(trace.tokens[p])}”" for p in (key, query))
    text = (
        f"Attention maps of the fewest heads of {names} that carry {100 * share:.4g}% of what attention brings from key "
        f"{from_key} to query {to_query} on the way to the output, most important first. Query down, key right; white 0 "
        "to dark blue 1. Red: that query and key; filled if the head maps one to the other, that is, if the query gives "
        "this key more weight than any other."
    )
    return text + (
        " A dot may be the darkest of several cells." if pooled(len(trace.tokens), side) > 1 else ""
    )


def _words(heads: CarryingHeads, layout: WordLayout) -> str:
    trace, key = heads.trace, heads.key
    boxes, text = sum(bool(box.lines) for box in layout.boxes), ""
    if boxes:
        text += f"Boxes: {boxes} of {len(trace.clusters)} clusters of features that respond to the same words (lines), "
        text += "with their layers"
        text += "; grey arrows: what the output takes straight from one. " if layout.has_grey_arrows else ". "
    positions = key_positions(trace, key)
    where = f"position{'s' * (len(positions) > 1)} {', '.join(str(p + 1) for p in positions)}"
    text += f"{percent(key_share(trace, key))} of the output “{layout.output[0]}” began as the embedding of "
    text += f"“{visible(trace.tokens[key])}” ({where}), not counting what began as an error of the transcoder"
    errors = trace.metrics.get("influence_of_errors")
    return text + (f", {percent(errors)} of all." if errors is not None else ".")


def _prompt(panels: Sequence[CarryingHeads], layout: WordLayout) -> str:
    trace = panels[-1].trace
    transcoders = [*dict.fromkeys(visible(heads.trace.transcoder, 40) for heads in panels)]
    shown, count = len(layout.words.labels), len(trace.tokens)
    text = f"Prompt ({count} tokens): “{visible(trace.prompt, 160)}”. "
    text += f"Shown are the {shown} tokens where most of the output began. " if shown < count else ""
    return f"{text}Transcoder{'s' * (len(transcoders) > 1)}: {', '.join(transcoders)}."
