"""The grid of attention maps: dense above, twin below, most important first. Drawn from data; no model is needed.

    picture = draw_maps(AttentionMaps.load("runs/maps"))
    save_figure(picture, "runs/maps/attention-maps")

Everything is placed in points from the top left corner of one pair of axes, so that nothing depends on a renderer.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from edgewise.core.errors import EdgewiseError
from edgewise.core.text import visible
from edgewise.maps.head_types import TYPES, HeadType
from edgewise.maps.result import AttentionMaps, Panel
from edgewise.plots.canvas import (
    BOLD,
    EDGE,
    GAP,
    GREY,
    LINE,
    PAD,
    SMALL,
    TITLE,
    canvas,
    draw_frame,
    draw_map,
    draw_paragraph,
    draw_squares,
    draw_text,
    ems,
    fitted,
    pooled,
    wrap,
)
from edgewise.plots.style import BLUES, COLUMN, MARK, PAGE, Picture, style


class _Layout(NamedTuple):
    width: float  # of the figure
    columns: int
    side: float  # of a map
    left: float  # room for tokens beside a map, if they are shown
    below: float

    def height(self, panel: Panel) -> float:
        lines = len(_under(panel, self.width))
        rows = math.ceil(len(panel.heads) / self.columns)
        grid = rows * (self.side + self.below + GAP)
        return PAD / 2 + 1.5 * TITLE + grid + 1.35 * SMALL * lines + PAD / 2


@dataclass(frozen=True)
class MapLook:
    """How to draw the grid."""

    columns: int | None = None
    """Maps to a row: nine, or five if narrow."""
    narrow: bool = False
    """As wide as a paper's column instead of its page."""
    colour_bar: bool = False
    """Add the scale."""
    mark: tuple[int, int] | None = None
    """A (query, key) to frame in red in every map, counted from 0."""

    def __post_init__(self) -> None:
        if self.columns is not None and self.columns < 1:
            raise EdgewiseError(f"--columns must be positive, not {self.columns}")


def cell(text: str) -> tuple[int, int]:
    """(8, 5) from "8,5"."""
    found = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", text)
    if not found:
        raise EdgewiseError(f"{text!r} is no cell; give a query and a key, counted from 0, as 8,5")
    return int(found[1]), int(found[2])


def draw_maps(maps: AttentionMaps, look: MapLook | None = None) -> Picture:
    """Draw the grid. A map alone is drawn large, with its tokens."""
    look = look or MapLook()
    mark = look.mark
    if mark is not None and not 0 <= mark[1] <= mark[0] < len(maps.tokens):
        raise EdgewiseError(
            f"there is no cell {mark[0]},{mark[1]} to mark: queries go from 0 to {len(maps.tokens) - 1}, "
            "and a query sees the keys up to itself"
        )
    layout = _layout(maps, look)
    wide = layout.width > 72 * COLUMN
    room = layout.width - 2 * EDGE - (110 if look.colour_bar and wide else 0)
    lines = [line for part in _caption(maps, layout, mark) for line in wrap(part, room, SMALL)]
    heights = [layout.height(panel) for panel in maps.panels]
    above = 28 if look.colour_bar and not wide else 0  # the scale beside the caption, or above it
    foot = max(above + 1.35 * SMALL * len(lines), 26 if look.colour_bar else 0)
    height = 2 * EDGE + sum(heights) + (len(heights) - 0.5) * PAD + foot
    with style():
        figure, axes = canvas(layout.width, height)
        top = EDGE
        for panel, tall in zip(maps.panels, heights, strict=True):
            _draw_panel(axes, panel, maps, layout, top, tall, mark)
            top += tall + PAD
        top -= PAD / 2
        draw_paragraph(axes, EDGE, top + above, lines)
        if look.colour_bar:
            _draw_colour_bar(axes, layout.width - EDGE - 92, top + 1)
    return figure


def _layout(maps: AttentionMaps, look: MapLook) -> _Layout:
    most = max((len(panel.heads) for panel in maps.panels), default=0)
    if most == 1:
        # a map alone is as large as the figure, with its tokens at the sides
        width = 72 * (COLUMN if look.narrow or len(maps.tokens) <= 24 else PAGE)
        room = SMALL * (max(ems(visible(token)) for token in maps.tokens) + 1)
        return _Layout(width, 1, width - 2 * EDGE - 2 * PAD - room, room, room)
    width = 72 * (COLUMN if look.narrow else PAGE)
    columns = min(look.columns or (5 if look.narrow else 9), max(most, 4))
    side = (width - 2 * EDGE - 2 * PAD - (columns - 1) * GAP) / columns
    return _Layout(width, columns, side, 0, 0)


# -------------------------------------------------------------------------------------------------------------- panels


def _draw_panel(
    axes: Axes, panel: Panel, maps: AttentionMaps, layout: _Layout, top: float, tall: float, mark
) -> None:
    left, right = EDGE, layout.width - EDGE
    draw_frame(axes, left, top, right - left, tall)
    base = top + PAD / 2 + TITLE
    count = _count(panel, maps)
    title = fitted(panel.title, right - left - 3 * PAD - SMALL * ems(count), BOLD * TITLE)
    draw_text(axes, left + PAD, base, title, TITLE, weight="bold")
    draw_text(axes, right - PAD, base, count, SMALL, ha="right", color=GREY)
    top += PAD / 2 + 1.5 * TITLE
    longest = max(map(len, panel.heads), default=1)
    size = min(7.0 if layout.side < 60 else 9.0, 0.62 * layout.side / (0.63 * longest))
    back = {"facecolor": "white", "edgecolor": "none", "pad": 0.6} if len(maps.tokens) < 4 else None
    corners = [_corner(place, layout, left + PAD, top) for place in range(len(panel.heads))]
    for (x, y), head, weights in zip(corners, panel.heads, panel.maps, strict=True):
        draw_map(axes, weights, x, y, layout.side)
        draw_text(axes, x + layout.side - 1.5, y + 1.5, head, size, ha="right", va="top", bbox=back)
        if layout.left:
            _draw_tokens(axes, maps.tokens, x, y, layout.side)
    draw_squares(axes, corners, layout.side, LINE, 0.4)
    if mark is not None:
        _draw_marks(axes, mark, corners, layout.side / len(maps.tokens))
    top += math.ceil(len(panel.heads) / layout.columns) * (layout.side + layout.below + GAP)
    draw_paragraph(axes, left + PAD, top, _under(panel, layout.width))


def _corner(place: int, layout: _Layout, left: float, top: float) -> tuple[float, float]:
    row, column = divmod(place, layout.columns)
    x = left + layout.left + column * (layout.side + GAP)
    return x, top + row * (layout.side + layout.below + GAP)


def _draw_marks(
    axes: Axes, mark: tuple[int, int], corners: Sequence[tuple[float, float]], cell: float
) -> None:
    """A frame around one cell of every map, never too small to be seen."""
    side = max(cell + 1.0, 4.0)
    down, right = ((at + 0.5) * cell - side / 2 for at in mark)
    draw_squares(axes, [(x + right, y + down) for x, y in corners], side, MARK, 1.0)


def _draw_tokens(axes: Axes, tokens: list[str], x: float, y: float, side: float) -> None:
    """Every token, or as many as can be read."""
    cell = side / len(tokens)
    every = math.ceil(4.5 / cell)
    size = min(SMALL, 0.95 * cell * every)
    for place in range(0, len(tokens), every):
        at, label = (place + 0.5) * cell, visible(tokens[place])
        draw_text(axes, x - 3, y + at, label, size, ha="right", va="center")
        upright = {"rotation": 90, "rotation_mode": "anchor"}  # placed by its end, whatever the viewer's font
        draw_text(axes, x + at, y + side + 3, label, size, ha="right", va="center", **upright)
    draw_text(axes, x - 3, y + side + 4, "query ↓\nkey →", SMALL, ha="right", va="top", color=GREY)


def _draw_colour_bar(axes: Axes, x: float, y: float) -> None:
    shades = BLUES(np.linspace(0, 1, 256)[None], bytes=True)[..., :3]
    axes.imshow(shades, extent=(x, x + 90, y + 6, y), aspect="auto", interpolation="none", zorder=2)
    frame = Rectangle((x, y), 90, 6, facecolor="none", edgecolor=LINE, linewidth=0.4, zorder=3)
    axes.add_patch(frame)
    for value, side in ((0, "left"), (0.5, "center"), (1, "right")):
        draw_text(axes, x + 90 * value, y + 8, f"{value:g}", SMALL, ha=side, va="top", color=GREY)
    draw_text(axes, x + 45, y + 16, "attention weight", SMALL, ha="center", va="top", color=GREY)


# -------------------------------------------------------------------------------------------------------------- words


def _count(panel: Panel, maps: AttentionMaps) -> str:
    text = f"{len(panel.heads)} of {len(panel.measured)} heads"
    if panel.explained is None:
        return text
    return f"{text} explain{'s' * (len(panel.heads) == 1)} {panel.explained:.0%} of {maps.task}"


def _under(panel: Panel, width: float) -> list[str]:
    """What is below the maps: how many heads of each type, with the parts of the commonest hybrids."""
    if not panel.heads:
        return wrap(panel.note or "no heads", width - 2 * EDGE - 2 * PAD, SMALL)
    counts = Counter(measured.type.name for measured in panel.shown)
    offsets = Counter(str(m.type) for m in panel.shown if m.type.name == "fixed-offset")
    hybrids = Counter(_parts(m.type) for m in panel.shown if m.type.parts)
    words = []
    for name in TYPES:
        details = {"fixed-offset": offsets, "hybrid": hybrids}.get(name, Counter()).most_common()
        inside = ", ".join(f"{label} {count}" if count > 1 else label for label, count in details[:4])
        inside += ", …" if len(details) > 4 else ""
        if counts[name]:
            words.append(f"{name}\u00a0{counts[name]}" + (f" ({inside})" if inside else ""))
    return wrap("Types: " + "\u00a0· ".join(words), width - 2 * EDGE - 2 * PAD, SMALL)


def _parts(hybrid: HeadType) -> str:
    """Its parts in one order, so that the same ones count together."""
    return " + ".join(
        map(str, sorted(hybrid.parts, key=lambda part: (TYPES.index(part.name), part.offset or 0)))
    )


def _caption(maps: AttentionMaps, layout: _Layout, mark: tuple[int, int] | None) -> list[str]:
    if maps.threshold is not None:
        first = (
            f"Attention maps of the heads that explain {maps.threshold:.0%} of the effect on {maps.task} "
            f"({maps.metric}, {maps.prompts} prompts), most important first."
        )
    else:
        which = "all" if all(len(panel.heads) == len(panel.measured) for panel in maps.panels) else "given"
        first = f"Attention maps of {which} heads{f', task {maps.task}' if maps.task else ''}."
    words = [first, "Query down, key right; white 0 to dark blue 1."]
    by = pooled(len(maps.tokens), layout.side)
    if by > 1:
        words.append(f"A dot is the darkest of {by} x {by} cells.")
    if mark is not None:
        query, key = (f"{at} “{visible(maps.tokens[at])}”" for at in mark)
        words.append(f"Red: query {query}, key {key}.")
    return [" ".join(words), f"Prompt ({len(maps.tokens)} tokens): “{visible(maps.prompt, 160)}”"]
