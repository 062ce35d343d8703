"""The attribution diagram: which heads bring a key to the last query, in a dense model and its twin, and what comes of it.

    picture = draw_trace([Trace.load("runs/trace-pocket"), Trace.load("runs/trace-pocket-sparse")])
    save_figure(picture, "runs/trace-diagram")

Left, the wall of the dense model's heads; right, the few of the twin; below these, the words, the clusters of features that
respond to them, and the output. Drawn from saved traces; everything is placed in points from the top left corner.
"""

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from edgewise.core.errors import EdgewiseError
from edgewise.core.text import model_titles, visible
from edgewise.plots.canvas import (
    BOLD,
    EDGE,
    GREY,
    INK,
    PAD,
    SMALL,
    TITLE,
    canvas,
    draw_frame,
    draw_paragraph,
    draw_text,
    ems,
    fitted,
    percent,
    pooled,
    wrap,
)
from edgewise.plots.style import MARK, PAGE, Picture, figure_style
from edgewise.plots.trace_boxes import began_at, share_of_key
from edgewise.plots.trace_heads import MOST, Carrying, draw_maps, named_grid, wall
from edgewise.plots.trace_words import WordFlow, lay_out
from edgewise.tracing.result import Trace

_SENTENCE = 8.5  # type size
_HEADER, _NAME, _GAP = (
    27.0,
    19.0,
    12.0,
)  # heights: the sentences above the maps, the name below all, below the maps
_CORNER = 26.0  # the width of the little axes
_WIDTHS = ((6, 134.0), (16, 154.0), (MOST, 186.0))  # of the left panel, for so many heads


def draw_trace(traces: Trace | Iterable[Trace], key: int | None = None, share: float = 0.8) -> Picture:
    """Draw a trace, or two of the same prompt: the dense model's first, then its twin's.

    `key` is the position, counted from 0, from which heads bring something to the last one; by default the position from
    which they bring most. Shown are the fewest heads that carry `share` of it. A head maps the key to the query if the query
    gives this key more weight than any other; only then is its cell filled.

    At the arrow stands the share of the output that began as the embedding of the key's word, through whatever was in
    between (`Trace.origins`); if its cluster joins words of the same text, that of all of them. What began as an error of
    the transcoder, which nothing explains, does not count there; the caption says how much that is.
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    key = _checked(traces, key)
    names = model_titles([trace.model for trace in traces], [trace.kind for trace in traces])
    panels = [Carrying(trace, name, key, share) for trace, name in zip(traces, names, strict=True)]
    main, dense = panels[-1], panels[0] if len(panels) == 2 else None
    beside = next(wide for most, wide in _WIDTHS if len(dense.shown) <= most) if dense else -PAD
    width, left = 72 * PAGE, EDGE + beside + PAD
    room = width - EDGE - left - 2 * PAD
    grid, flow = named_grid(len(main.shown), room), lay_out(main.trace, key, room)
    maps = wall(len(dense.shown), beside - 2 * PAD, grid.height + _GAP + flow.height) if dense else grid
    tall = max(grid.height + _GAP + flow.height, maps.height)
    lines = [
        line
        for part in _caption(panels, flow, min(grid.side, maps.side))
        for line in wrap(part, width - 2 * EDGE, SMALL)
    ]
    frame, top = PAD + _HEADER + tall + _NAME, EDGE + PAD + _HEADER
    with figure_style():
        figure, axes = canvas(width, EDGE + frame + PAD / 2 + 1.35 * SMALL * len(lines) + 2 + EDGE)
        if dense:
            _draw_panel(axes, dense, EDGE, beside, frame)
            _draw_count(axes, dense, EDGE + PAD, beside - 2 * PAD)
            begin = top if maps.above else top + (tall - maps.height) / 2
            draw_maps(axes, dense, maps, EDGE + PAD, begin, beside - 2 * PAD)
        _draw_panel(axes, main, left, room + 2 * PAD, frame)
        _draw_sentence(axes, main, left + PAD, room)
        draw_maps(axes, main, grid, left + PAD, top, room)
        flow.draw(axes, left + PAD, top + tall - flow.height)
        draw_paragraph(axes, EDGE, EDGE + frame + PAD / 2, lines)
    return figure


def _checked(traces: Sequence[Trace], key: int | None) -> int:
    if len(traces) not in (1, 2):
        raise EdgewiseError(f"the diagram shows one trace or two, not {len(traces)}")
    first, last = traces[0], traces[-1]
    if first.prompt != last.prompt:
        prompts = " and ".join(f"“{visible(trace.prompt, 40)}”" for trace in traces)
        raise EdgewiseError(f"the traces are of different prompts: {prompts}")
    if first.tokens != last.tokens:
        models = " and ".join(visible(trace.model, 40) for trace in traces)
        raise EdgewiseError(f"the traces read different tokens: {models} have different tokenizers")
    length = len(last.tokens)
    key = last.main_key if key is None else key
    if not 0 <= key < max(length - 1, 1):
        raise EdgewiseError(
            f"there is no key {key} to trace to the last position, {length - 1}: keys go from 0 to {max(length - 2, 0)}"
        )
    return key


# ---------------------------------------------------------------------------------------------------------------- panels


def _draw_panel(axes: Axes, heads: Carrying, left: float, wide: float, tall: float) -> None:
    draw_frame(axes, left, EDGE, wide, tall)
    name = fitted(heads.title, wide - 2 * PAD, BOLD * TITLE)
    draw_text(axes, left + wide / 2, EDGE + tall - 6, name, TITLE, ha="center", weight="bold")


def _draw_sentence(axes: Axes, heads: Carrying, left: float, room: float) -> None:
    """What the heads do, in red if all do it; beside it, which way keys and queries go in every map."""
    x, y = left + 2, EDGE + PAD + 2
    for end, name, at in (((x + 15, y), "K", (x + 17, y + 2.3)), ((x, y + 15), "Q", (x - 2.5, y + 21))):
        arrow = FancyArrowPatch((x, y), end, arrowstyle="-|>", mutation_scale=5, shrinkA=0, shrinkB=0)
        arrow.set(linewidth=0.8, color=INK, zorder=3)
        axes.add_patch(arrow)
        draw_text(axes, *at, name, SMALL, color=INK)
    size = min(_SENTENCE, (room - _CORNER) / (BOLD * ems(heads.sentence)))
    free = room - BOLD * size * ems(heads.sentence)
    centre = left + room / 2 + max(0.0, _CORNER - free / 2)  # in the middle, unless the arrows are there
    look = {"weight": "bold", "color": MARK if heads.all_look_there else INK}
    draw_text(axes, centre, EDGE + PAD + _SENTENCE, heads.sentence, size, ha="center", **look)
    if heads.shown:
        count = f"{heads.count} of it{heads.cut_off}"
        draw_text(axes, centre, EDGE + PAD + 2.25 * _SENTENCE, count, SMALL, ha="center", color=GREY)


def _draw_count(axes: Axes, heads: Carrying, left: float, room: float) -> None:
    above = heads.count if heads.shown else "No head carries anything"
    below = f"from {heads.cell}{heads.cut_off}"
    for text, base, size, colour in ((above, 1.0, 7.5, INK), (below, 2.25, SMALL, GREY)):
        size = min(size, room / ems(text))
        draw_text(axes, left + room / 2, EDGE + PAD + base * _SENTENCE, text, size, ha="center", color=colour)


# ----------------------------------------------------------------------------------------------------------------- words


def _caption(panels: Sequence[Carrying], flow: WordFlow, side: float) -> list[str]:
    """What a reader needs who finds the picture elsewhere."""
    trace, key, query = panels[-1].trace, panels[-1].key, panels[-1].query
    names, share = " and ".join(visible(heads.title, 60) for heads in panels), panels[-1].share
    from_key, to_query = (f"{place + 1} “{visible(trace.tokens[place])}”" for place in (key, query))
    maps = (
        f"Attention maps of the fewest heads of {names} that carry {100 * share:.4g}% of what attention brings from key "
        f"{from_key} to query {to_query} on the way to the output, most important first. Query down, key right; white 0 "
        "to dark blue 1. Red: that query and key; filled if the head maps one to the other, that is, if the query gives "
        "this key more weight than any other."
    )
    maps += " A dot may be the darkest of several cells." if pooled(len(trace.tokens), side) > 1 else ""
    boxes, words = sum(bool(box.lines) for box in flow.boxes), ""
    if boxes:
        words += f"Boxes: {boxes} of {len(trace.clusters)} clusters of features that respond to the same words (lines), "
        words += "with their layers"
        words += "; grey arrows: what the output takes straight from one. " if flow.has_grey_arrows else ". "
    began = began_at(trace, key)
    places = f"position{'s' * (len(began) > 1)} {', '.join(str(place + 1) for place in began)}"
    words += (
        f"{percent(share_of_key(trace, key))} of the output “{flow.output[0]}” began as the embedding of "
    )
    words += (
        f"“{visible(trace.tokens[key])}” ({places}), not counting what began as an error of the transcoder"
    )
    errors = trace.metrics.get("influence_of_errors")
    words += f", {percent(errors)} of all." if errors is not None else "."
    transcoders = [*dict.fromkeys(visible(heads.trace.transcoder, 40) for heads in panels)]
    shown, count = len(flow.words.labels), len(trace.tokens)
    prompt = f"Prompt ({count} tokens): “{visible(trace.prompt, 160)}”. "
    prompt += f"Shown are the {shown} tokens where most of the output began. " if shown < count else ""
    return [maps, words, f"{prompt}Transcoder{'s' * (len(transcoders) > 1)}: {', '.join(transcoders)}."]
