"""Drawing in points from the top left corner of one pair of axes, for figures that place everything themselves.

Text widths come from the font, not from a renderer, so that a figure does not depend on one.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.ft2font import LoadFlags
from matplotlib.patches import FancyBboxPatch, Rectangle

from edgewise.core.text import visible
from edgewise.plots.look import Look, room_of, root_figure, scale_artists
from edgewise.plots.style import BLUES, Picture, figure_style

EDGE, PAD, GAP = 3.0, 8.0, 5.0
"""Points: around the figure, inside a panel, between maps."""
TITLE, SMALL = 9.0, 6.5
"""Font sizes."""
BOLD = 1.15
"""Width of bold text over that of regular text."""
DOTS = 200 / 72
"""Pixels of a PNG per point: a map with more cells than pixels would lose lines."""
INK, GREY, LINE, BACK = "#222222", "#444444", "#a5adb8", "#f5f7fa"
_LEFT_TO_RIGHT = "\u200e"


@contextmanager
def canvas(look: Look, width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure, with its size in points (on paper), and its axes, which count points from the top left. `look.title` is
    drawn above, the rest is scaled at the end of this block."""
    with figure_style():
        above = 1.8 * TITLE if look.title else 0.0
        scale = look.scale
        if look.ax is None:
            figure = Picture(figsize=(scale * width / 72, scale * (height + above) / 72))
            axes = figure.add_axes((0, 0, 1, 1))
        else:
            axes, figure = look.ax, root_figure(look.ax)
            room = room_of(axes)
            scale = min(scale, room[0] / width, room[1] / (height + above))
            axes.set(aspect="equal", anchor="N")
        axes.set(xlim=(0, width), ylim=(height, -above), autoscale_on=False)
        axes.axis("off")
        if look.title:
            title = fitted(look.title, width - 2 * EDGE, BOLD * TITLE)
            draw_text(axes, width / 2, -above + 1.3 * TITLE, title, TITLE, ha="center", weight="bold")
        yield figure, axes
        scale_artists(axes, scale)


def draw_frame(axes: Axes, left: float, top: float, width: float, height: float) -> None:
    """The rounded panel behind the maps of a model."""
    style = {"facecolor": BACK, "edgecolor": LINE, "linewidth": 0.8}
    shape = "round,pad=0,rounding_size=6"
    axes.add_patch(FancyBboxPatch((left, top), width, height, boxstyle=shape, **style))


# ---------------------------------------------------------------------------------------------------------------- maps


def draw_map(
    axes: Axes,
    weights: np.ndarray,
    x: float,
    y: float,
    side: float,
    cmap: str | Colormap | None = None,
    up: bool = False,
) -> None:
    """An attention map [t, t] as an image; a cell is several pixels, so that viewers that smooth images do not blur it."""
    cells = np.tril(weights)
    n = pooled(len(cells), side)
    if n > 1:
        cells = np.pad(cells, (0, -len(cells) % n))
        cells = cells.reshape(len(cells) // n, n, -1, n).max((1, 3))
    image = shades(np.clip(cells, 0, 1), cmap)
    image = image[::-1] if up else image
    pixels = max(1, 128 // len(cells))
    image = image.repeat(pixels, 0).repeat(pixels, 1)
    axes.imshow(image, extent=(x, x + side, y + side, y), aspect="auto", interpolation="none", zorder=2)


def shades(weights: np.ndarray, cmap: str | Colormap | None = None) -> np.ndarray:  # [...] -> uint8 [..., 3]
    """Colours of attention weights, 0 to 1."""
    colours = colormaps[cmap] if isinstance(cmap, str) else cmap or BLUES
    return colours(weights, bytes=True)[..., :3]


def draw_squares(
    axes: Axes, corners: Sequence[tuple[float, float]], side: float, colour: str, width: float
) -> None:
    squares = [Rectangle(corner, side, side) for corner in corners]
    axes.add_collection(
        PatchCollection(squares, facecolor="none", edgecolor=colour, linewidth=width, zorder=3), autolim=False
    )


def pooled(t: int, side: float) -> int:
    """n, if a pixel shows the darkest of n x n cells of a map of t tokens."""
    return math.ceil(t / (side * DOTS))


# ---------------------------------------------------------------------------------------------------------------- text


def percent(share: float) -> str:
    """A share in percent, never rounded to 0% or 100%."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 - 1e-9 else f"{share:.0%}"


def draw_text(axes: Axes, x: float, y: float, text: str, size: float, **kwargs) -> None:
    axes.text(x, y, text, fontsize=size, zorder=5, **kwargs)


def draw_paragraph(axes: Axes, x: float, top: float, lines: list[str]) -> None:
    """Draw each line by itself: within one text, a tall character would push the next lines down."""
    for i, line in enumerate(lines):
        draw_text(axes, x, top + (1.35 * i + 1) * SMALL, line, SMALL, color=GREY)


def fitted(text: str, room: float, size: float) -> str:
    """As much of a text as fits into `room` points, made visible."""
    return next(t for n in range(60, 0, -1) if size * ems(t := visible(text, n)) <= room or n == 1)


def wrap(text: str, room: float, size: float) -> list[str]:
    """Lines that fit into `room` points; a longer word is cut."""
    lines, line = [], ""
    for word in re.findall(r"[^ ]* *", text):
        while size * ems(line + word.rstrip()) > room and line + word:
            if not line:
                fits = max(n for n in range(1, len(word) + 1) if n == 1 or size * ems(word[:n]) <= room)
                line, word = word[:fits], word[fits:]
            lines.append(line.rstrip(" "))
            line = ""
        line += word
    lines = [line for line in (*lines, line.rstrip(" ")) if line] or [""]
    # a line that begins with Hebrew or Arabic would be set from the right as a whole
    return [
        _LEFT_TO_RIGHT * any(unicodedata.bidirectional(c) in ("R", "AL") for c in line) + line
        for line in lines
    ]


def ems(text: str) -> float:
    """Width of a text, in units of its font size."""
    return sum(map(_advance, text))


@cache
def _advance(character: str) -> float:
    font = get_font(findfont("DejaVu Sans"))
    font.set_size(100, 72)
    if not font.get_char_index(ord(character)):
        return 1.1  # a box stands for it
    advance = font.load_char(ord(character), LoadFlags.NO_HINTING).linearHoriAdvance / 65536 / 100
    return 1.03 * advance  # on a screen, letters are moved to whole pixels
