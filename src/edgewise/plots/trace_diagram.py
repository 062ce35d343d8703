"""The attribution diagram: which heads carry a key to the last query, in a dense model and its sparse twin.

    traces = Traces.load("runs/trace")
    save_figure(draw_trace(traces), "runs/trace-diagram")

Left, the dense model's heads; right, the twin's; below these, the words, the clusters of features that respond to them, and
the output. Drawn from saved traces; everything is placed in points from the top left corner.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Unpack

from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    wrap,
)
from edgewise.plots.look import LookArguments, check_look
from edgewise.plots.style import MARK, PAGE
from edgewise.plots.trace_caption import caption as caption_of
from edgewise.plots.trace_heads import (
    MAX_MAPS,
    CarryingHeads,
    dense_grid,
    draw_maps,
    draw_wall,
    named_grid,
)
from edgewise.plots.trace_layout import lay_out
from edgewise.plots.trace_words import draw_words
from edgewise.tracing.result import Trace

_SENTENCE = 8.5  # type size
_HEADER, _NAME, _GAP = 27.0, 19.0, 12.0  # heights: the sentences, the model's name, below the maps
_CORNER = 26.0  # the width of the small axes K and Q
_NARROWEST = 5.0  # inches: the prompt, boxes and maps do not fit into less
_WIDTHS = ((6, 134.0), (16, 154.0), (MAX_MAPS, 186.0))  # of the left panel, for so many heads


def draw_trace(
    traces: Trace | Iterable[Trace],
    key: int | None = None,
    share: float = 0.8,
    query_axis: Literal["down", "up"] = "down",
    **look: Unpack[LookArguments],
) -> Figure:
    """Draw a trace, or two of the same prompt: the dense model's first, then its twin's.

    `key` is the position, counted from 0, from which heads carry something to the last one; by default the position from
    which they carry most. Shown are the fewest heads that carry `share` of it. A head maps the key to the query if the query
    gives this key more weight than any other; only then is its cell filled.

    Read the arrow from the output to the key's word; its label is the share of the attribution through attention, from the
    key to the query, that the drawn heads carry. Below each token is the share of the output that is attributed to its
    embedding, through whatever is in between (`Trace.origins`). With `query_axis` up, the first query is at the bottom of
    a map.
    `look` are ax, title, names, cmap, width, theme and caption, as for every figure (`LookArguments`).
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    key = _checked_key(traces, key)
    if query_axis not in ("down", "up"):
        raise EdgewiseError(f"`query_axis` is down or up, not {query_axis!r}")
    checked = check_look(look, len(traces), unused=["colours"])
    names = checked.named(model_titles([trace.model for trace in traces], [trace.kind for trace in traces]))
    panels = [
        CarryingHeads(trace, name, key, share, query_axis == "up", checked.cmap)
        for trace, name in zip(traces, names, strict=True)
    ]
    main, dense = panels[-1], panels[0] if len(panels) == 2 else None
    dense_width = _dense_width(dense) if dense else -PAD
    width, left = 72 * max(checked.inches(PAGE), _NARROWEST), EDGE + dense_width + PAD
    inner = width - EDGE - left - 2 * PAD
    grid, layout = named_grid(len(main.shown), inner), lay_out(main.trace, key, inner, main.carried)
    height = grid.height + _GAP + layout.height
    maps = dense_grid(dense, dense_width - 2 * PAD, height) if dense else grid
    height = max(height, maps.height)
    paragraphs = caption_of(panels, layout, min(grid.side, maps.side)) if checked.caption else []
    lines = [line for text in paragraphs for line in wrap(text, width - 2 * EDGE, SMALL)]
    frame, top = PAD + _HEADER + height + _NAME, EDGE + PAD + _HEADER
    below = EDGE + bool(lines) * (PAD / 2 + 1.35 * SMALL * len(lines) + 2)
    with canvas(checked, width, EDGE + frame + below) as (figure, axes):
        if dense:
            _draw_panel(axes, dense, EDGE, dense_width, frame)
            _draw_count(axes, dense, EDGE + PAD, dense_width - 2 * PAD)
            maps_top = top if maps.above else top + (height - maps.height) / 2
            draw = draw_wall if dense.is_wall else draw_maps
            draw(axes, dense, maps, EDGE + PAD, maps_top, dense_width - 2 * PAD)
        _draw_panel(axes, main, left, inner + 2 * PAD, frame)
        _draw_sentence(axes, main, left + PAD, inner)
        draw_maps(axes, main, grid, left + PAD, top, inner)
        draw_words(axes, layout, left + PAD, top + height - layout.height)
        draw_paragraph(axes, EDGE, EDGE + frame + PAD / 2, lines)
    return figure


def _dense_width(dense: CarryingHeads) -> float:
    """Of the left panel: a wall of all heads is as wide as it can be."""
    return _WIDTHS[-1][1] if dense.is_wall else next(w for count, w in _WIDTHS if len(dense.shown) <= count)


def _checked_key(traces: Sequence[Trace], key: int | None) -> int:
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


def _draw_panel(axes: Axes, heads: CarryingHeads, left: float, width: float, height: float) -> None:
    draw_frame(axes, left, EDGE, width, height)
    name = fitted(heads.title, width - 2 * PAD, BOLD * TITLE)
    draw_text(axes, left + width / 2, EDGE + height - 6, name, TITLE, ha="center", weight="bold")


def _draw_sentence(axes: Axes, heads: CarryingHeads, left: float, width: float) -> None:
    """How many heads map the key to the query, in red if all do; beside it, the directions of keys and queries in a map."""
    x, y = left + 2, EDGE + PAD + (17 if heads.up else 2)
    to_query, at_query = ((x, y - 15), (x - 2.5, y - 17)) if heads.up else ((x, y + 15), (x - 2.5, y + 21))
    for end, name, at in (((x + 15, y), "K", (x + 17, y + 2.3)), (to_query, "Q", at_query)):
        arrow = FancyArrowPatch((x, y), end, arrowstyle="-|>", mutation_scale=5, shrinkA=0, shrinkB=0)
        arrow.set(linewidth=0.8, color=INK, zorder=3)
        axes.add_patch(arrow)
        draw_text(axes, *at, name, SMALL, color=INK)
    size = min(_SENTENCE, (width - _CORNER) / (BOLD * ems(heads.sentence)))
    free = width - BOLD * size * ems(heads.sentence)
    centre = left + width / 2 + max(0.0, _CORNER - free / 2)  # in the middle, unless the arrows are there
    style = {"weight": "bold", "color": MARK if heads.all_map else INK}
    draw_text(axes, centre, EDGE + PAD + _SENTENCE, heads.sentence, size, ha="center", **style)
    if heads.shown:
        count = f"{heads.count} of it{heads.cut_off}"
        draw_text(axes, centre, EDGE + PAD + 2.25 * _SENTENCE, count, SMALL, ha="center", color=GREY)


def _draw_count(axes: Axes, heads: CarryingHeads, left: float, width: float) -> None:
    above = heads.count if heads.shown else "No head carries anything"
    below = f"from {heads.edge}{heads.cut_off}"
    for text, base, size, colour in ((above, 1.0, 7.5, INK), (below, 2.25, SMALL, GREY)):
        size = min(size, width / ems(text))
        draw_text(
            axes, left + width / 2, EDGE + PAD + base * _SENTENCE, text, size, ha="center", color=colour
        )
