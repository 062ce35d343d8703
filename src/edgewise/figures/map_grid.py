"""The grid of attention maps: dense above, twin below, most important first. Drawn from data; no model is needed.

    picture = draw_maps(AttentionMaps.load("runs/maps"))
    save_figure(picture, "runs/maps/attention-maps")

Everything is placed in points from the top left corner of one pair of axes, so that nothing depends on a renderer.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.font_manager import findfont, get_font
from matplotlib.ft2font import LoadFlags
from matplotlib.patches import FancyBboxPatch, Rectangle

from edgewise.drawing import BLUES, COLUMN, MARK, PAGE, Picture, style, visible
from edgewise.errors import EdgewiseError
from edgewise.figures.attention_maps import AttentionMaps, Panel
from edgewise.figures.head_types import TYPES, HeadType

EDGE, PAD, GAP = 3.0, 8.0, 5.0
"""Points: around the figure, inside a panel, between maps."""
TITLE, SMALL = 9.0, 6.5
"""Type sizes."""
DOTS = 200 / 72
"""Of a PNG, to the point: a map with more cells than dots would lose lines."""
_GREY, _LINE, _BACK = "#444444", "#a5adb8", "#f5f7fa"
_LEFT_TO_RIGHT = "\u200e"


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
    lines = [line for part in _caption(maps, layout, mark) for line in _wrap(part, room, SMALL)]
    heights = [layout.height(panel) for panel in maps.panels]
    above = 28 if look.colour_bar and not wide else 0  # the scale beside the caption, or above it
    foot = max(above + 1.35 * SMALL * len(lines), 26 if look.colour_bar else 0)
    height = 2 * EDGE + sum(heights) + (len(heights) - 0.5) * PAD + foot
    with style():
        figure = Picture(figsize=(layout.width / 72, height / 72))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, layout.width), ylim=(height, 0), autoscale_on=False)
        axes.axis("off")
        top = EDGE
        for panel, tall in zip(maps.panels, heights, strict=True):
            _draw_panel(axes, panel, maps, layout, top, tall, mark)
            top += tall + PAD
        top -= PAD / 2
        _paragraph(axes, EDGE, top + above, lines)
        if look.colour_bar:
            _draw_colour_bar(axes, layout.width - EDGE - 92, top + 1)
    return figure


def _layout(maps: AttentionMaps, look: MapLook) -> _Layout:
    most = max((len(panel.heads) for panel in maps.panels), default=0)
    if most == 1:
        # a map alone is as large as the figure, with its tokens at the sides
        width = 72 * (COLUMN if look.narrow or len(maps.tokens) <= 24 else PAGE)
        room = SMALL * (max(_ems(visible(token)) for token in maps.tokens) + 1)
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
    box = FancyBboxPatch(
        (left, top),
        right - left,
        tall,
        boxstyle="round,pad=0,rounding_size=6",
        facecolor=_BACK,
        edgecolor=_LINE,
        linewidth=0.8,
    )
    axes.add_patch(box)
    base = top + PAD / 2 + TITLE
    count = _count(panel, maps)
    room = (right - left - 3 * PAD - SMALL * _ems(count)) / (1.15 * TITLE)  # bold is wider
    title = next(t for n in range(60, 0, -1) if _ems(t := visible(panel.title, n)) <= room or n == 1)
    _text(axes, left + PAD, base, title, TITLE, weight="bold")
    _text(axes, right - PAD, base, count, SMALL, ha="right", color=_GREY)
    top += PAD / 2 + 1.5 * TITLE
    longest = max(map(len, panel.heads), default=1)
    size = min(7.0 if layout.side < 60 else 9.0, 0.62 * layout.side / (0.63 * longest))
    back = {"facecolor": "white", "edgecolor": "none", "pad": 0.6} if len(maps.tokens) < 4 else None
    corners = [_corner(place, layout, left + PAD, top) for place in range(len(panel.heads))]
    for (x, y), head, weights in zip(corners, panel.heads, panel.maps, strict=True):
        _draw_map(axes, weights, x, y, layout.side)
        _text(axes, x + layout.side - 1.5, y + 1.5, head, size, ha="right", va="top", bbox=back)
        if layout.left:
            _draw_tokens(axes, maps.tokens, x, y, layout.side)
    _draw_squares(axes, corners, layout.side, _LINE, 0.4)
    if mark is not None:
        _draw_marks(axes, mark, corners, layout.side / len(maps.tokens))
    top += math.ceil(len(panel.heads) / layout.columns) * (layout.side + layout.below + GAP)
    _paragraph(axes, left + PAD, top, _under(panel, layout.width))


def _draw_map(axes: Axes, weights: np.ndarray, x: float, y: float, side: float) -> None:
    """An image, in which a cell is several dots, so that viewers that smooth images do not blur it."""
    cells = np.tril(weights)
    by = _pooled(len(cells), side)
    if by > 1:
        cells = np.pad(cells, (0, -len(cells) % by))
        cells = cells.reshape(len(cells) // by, by, -1, by).max((1, 3))
    image = BLUES(np.clip(cells, 0, 1), bytes=True)[..., :3]
    times = max(1, 128 // len(cells))
    image = image.repeat(times, 0).repeat(times, 1)
    axes.imshow(image, extent=(x, x + side, y + side, y), aspect="auto", interpolation="none", zorder=2)


def _corner(place: int, layout: _Layout, left: float, top: float) -> tuple[float, float]:
    row, column = divmod(place, layout.columns)
    x = left + layout.left + column * (layout.side + GAP)
    return x, top + row * (layout.side + layout.below + GAP)


def _draw_squares(
    axes: Axes, corners: Sequence[tuple[float, float]], side: float, colour: str, width: float
) -> None:
    squares = [Rectangle(corner, side, side) for corner in corners]
    axes.add_collection(
        PatchCollection(squares, facecolor="none", edgecolor=colour, linewidth=width, zorder=3), autolim=False
    )


def _pooled(t: int, side: float) -> int:
    """How many cells a side share a dot, of which the darkest is shown."""
    return math.ceil(t / (side * DOTS))


def _draw_marks(
    axes: Axes, mark: tuple[int, int], corners: Sequence[tuple[float, float]], cell: float
) -> None:
    """A frame around one cell of every map, never too small to be seen."""
    side = max(cell + 1.0, 4.0)
    down, right = ((at + 0.5) * cell - side / 2 for at in mark)
    _draw_squares(axes, [(x + right, y + down) for x, y in corners], side, MARK, 1.0)


def _draw_tokens(axes: Axes, tokens: list[str], x: float, y: float, side: float) -> None:
    """Every token, or as many as can be read."""
    cell = side / len(tokens)
    every = math.ceil(4.5 / cell)
    size = min(SMALL, 0.95 * cell * every)
    for place in range(0, len(tokens), every):
        at, label = (place + 0.5) * cell, visible(tokens[place])
        _text(axes, x - 3, y + at, label, size, ha="right", va="center")
        upright = {"rotation": 90, "rotation_mode": "anchor"}  # placed by its end, whatever the viewer's font
        _text(axes, x + at, y + side + 3, label, size, ha="right", va="center", **upright)
    _text(axes, x - 3, y + side + 4, "query ↓\nkey →", SMALL, ha="right", va="top", color=_GREY)


def _draw_colour_bar(axes: Axes, x: float, y: float) -> None:
    shades = BLUES(np.linspace(0, 1, 256)[None], bytes=True)[..., :3]
    axes.imshow(shades, extent=(x, x + 90, y + 6, y), aspect="auto", interpolation="none", zorder=2)
    frame = Rectangle((x, y), 90, 6, facecolor="none", edgecolor=_LINE, linewidth=0.4, zorder=3)
    axes.add_patch(frame)
    for value, side in ((0, "left"), (0.5, "center"), (1, "right")):
        _text(axes, x + 90 * value, y + 8, f"{value:g}", SMALL, ha=side, va="top", color=_GREY)
    _text(axes, x + 45, y + 16, "attention weight", SMALL, ha="center", va="top", color=_GREY)


# -------------------------------------------------------------------------------------------------------------- words


def _count(panel: Panel, maps: AttentionMaps) -> str:
    text = f"{len(panel.heads)} of {len(panel.measured)} heads"
    if panel.explained is None:
        return text
    return f"{text} explain{'s' * (len(panel.heads) == 1)} {panel.explained:.0%} of {maps.task}"


def _under(panel: Panel, width: float) -> list[str]:
    """What is below the maps: how many heads of each type, with the parts of the commonest hybrids."""
    if not panel.heads:
        return _wrap(panel.note or "no heads", width - 2 * EDGE - 2 * PAD, SMALL)
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
    return _wrap("Types: " + "\u00a0· ".join(words), width - 2 * EDGE - 2 * PAD, SMALL)


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
    by = _pooled(len(maps.tokens), layout.side)
    if by > 1:
        words.append(f"A dot is the darkest of {by} x {by} cells.")
    if mark is not None:
        query, key = (f"{at} “{visible(maps.tokens[at])}”" for at in mark)
        words.append(f"Red: query {query}, key {key}.")
    return [" ".join(words), f"Prompt ({len(maps.tokens)} tokens): “{visible(maps.prompt, 160)}”"]


def _paragraph(axes: Axes, x: float, top: float, lines: list[str]) -> None:
    """Each line by itself: within one text, a tall character would push the next ones down."""
    for place, line in enumerate(lines):
        _text(axes, x, top + (1.35 * place + 1) * SMALL, line, SMALL, color=_GREY)


def _text(axes: Axes, x: float, y: float, text: str, size: float, **kwargs) -> None:
    axes.text(x, y, text, fontsize=size, zorder=5, **kwargs)


def _wrap(text: str, room: float, size: float) -> list[str]:
    """Lines that fit into so many points; a word that does not is cut."""
    lines, line = [], ""
    for piece in re.findall(r"[^ ]* *", text):
        while size * _ems(line + piece.rstrip()) > room and line + piece:
            if not line:
                fits = max(n for n in range(1, len(piece) + 1) if n == 1 or size * _ems(piece[:n]) <= room)
                line, piece = piece[:fits], piece[fits:]
            lines.append(line.rstrip(" "))
            line = ""
        line += piece
    lines = [line for line in (*lines, line.rstrip(" ")) if line] or [""]
    # a line that begins with Hebrew or Arabic would be set from the right as a whole
    return [
        _LEFT_TO_RIGHT * any(unicodedata.bidirectional(c) in ("R", "AL") for c in line) + line
        for line in lines
    ]


def _ems(text: str) -> float:
    """How wide a text is, in units of its size."""
    return sum(map(_advance, text))


@cache
def _advance(character: str) -> float:
    font = get_font(findfont("DejaVu Sans"))
    font.set_size(100, 72)
    if not font.get_char_index(ord(character)):
        return 1.1  # a box stands for it
    advance = font.load_char(ord(character), LoadFlags.NO_HINTING).linearHoriAdvance / 65536 / 100
    return 1.03 * advance  # on a screen, letters are moved to whole dots
