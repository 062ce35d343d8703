"""The lower half of the attribution diagram, drawn: the prompt's words, the clusters that respond to them, the output.

Lines have the bands between texts to themselves and never run through one.
"""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path

from edgewise.plots.canvas import BOLD, GREY, INK, LINE, draw_text, ems
from edgewise.plots.style import MARK
from edgewise.plots.trace_boxes import Box
from edgewise.plots.trace_layout import (
    ARROW_HEIGHT,
    LABEL,
    LINE_PITCH,
    LINES_HEIGHT,
    MIN_DIRECT,
    NOTE,
    NUMBER,
    OUTPUT_HEIGHT,
    WordLayout,
    box_width,
)

Point = tuple[float, float]


class _Bands(NamedTuple):
    """The left edge, and the top of each band."""

    left: float
    output: float
    boxes: float
    lines: float
    words: float


def draw_words(axes: Axes, layout: WordLayout, left: float, top: float) -> None:
    """Draw everything that was laid out."""
    boxes = top + OUTPUT_HEIGHT + ARROW_HEIGHT
    lines = boxes + layout.box_height
    bands = _Bands(left, top, boxes, lines, lines + LINES_HEIGHT)
    for box, (x, width) in zip(layout.boxes, layout.spans, strict=True):
        for word in box.words:
            if word in layout.words.centres:
                _draw_word_line(axes, layout, bands, box, word, left + x, left + x + width)
        if box.lines:
            edge = MARK if box.of_key else LINE
            _draw_box(axes, (left + x, boxes, width, layout.box_height), box.lines, edge)
    _draw_output(axes, layout, bands)
    _draw_tokens(axes, layout, bands)


def _draw_word_line(
    axes: Axes, layout: WordLayout, bands: _Bands, box: Box, word: int, left: float, right: float
) -> None:
    """Up from a word, past its taller neighbours, then over to a box, or between boxes to the arrow."""
    words = layout.words
    begin = bands.left + words.centres[word]
    end = min(max(begin, left + 7), right - 7) if box.lines else (left + right) / 2
    middle = (bands.lines + bands.words) / 2
    points = [(begin, bands.words - 1), (begin, middle), (end, middle), (end, bands.lines)]
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    if words.vertical:
        length = words.size * ems(words.labels[word]) * (BOLD if word == layout.key else 1)
        points.insert(0, (begin, bands.words + words.height - length - 3))
        codes.insert(1, Path.LINETO)
    if not box.lines:
        points.append((end, bands.boxes))
        codes.append(Path.LINETO)
    _draw_path(axes, points, codes, box.of_key and word == layout.key)


def _draw_output(axes: Axes, layout: WordLayout, bands: _Bands) -> None:
    """The box at the top, its arrow down to the key's box; arrows of other boxes come from the sides."""
    left, top, bottom = bands.left, bands.output, bands.output + OUTPUT_HEIGHT
    centres = [left + x + width / 2 for x, width in layout.spans]
    begin = next(x for x, box in zip(centres, layout.boxes, strict=True) if box.of_key)
    width = box_width(layout.output)
    x = min(max(begin - width / 2, left), left + layout.width - width)
    for centre, box in zip(centres, layout.boxes, strict=True):
        if box.of_key or box.direct < MIN_DIRECT:
            continue
        side, middle = x if centre < x else x + width, (top + bottom) / 2
        above = x <= centre <= x + width
        ends = [(centre, bottom)] if above else [(centre, middle), (side, middle)]
        _draw_arrow(axes, [(centre, bands.boxes), *ends], marked=False)
    _draw_box(axes, (x, top, width, OUTPUT_HEIGHT), layout.output, INK)
    base = bottom + ARROW_HEIGHT / 2 + 0.75 * NOTE
    half = 7.0 * ems(layout.arrow_label) / 2
    centre = min(max(begin, left + half), left + layout.width - half)
    _draw_path(axes, [(begin, bottom), (begin, base - LABEL)], [Path.MOVETO, Path.LINETO], True)
    _draw_arrow(axes, [(begin, base + 3), (begin, bands.boxes)], marked=True)
    draw_text(axes, centre, base, layout.arrow_label, 7.0, ha="center", color=MARK)


def _draw_tokens(axes: Axes, layout: WordLayout, bands: _Bands) -> None:
    words, below = layout.words, bands.words + layout.words.height
    vertical = {"rotation": 90, "rotation_mode": "anchor", "va": "center"}
    for position, label in words.labels.items():
        of_key = {"color": MARK, "weight": "bold"} if position == layout.key else {}
        x, number = bands.left + words.centres[position], str(position + 1)
        style, small = {"color": INK} | of_key, {"color": GREY} | of_key
        if words.vertical:
            draw_text(axes, x, below - 2, label, words.size, ha="left", **vertical, **style)
            draw_text(axes, x, below + 1, number, NUMBER, ha="right", **vertical, **small)
        else:
            draw_text(axes, x, below - 3, label, words.size, ha="center", **style)
            draw_text(axes, x, below + 1.2 * NUMBER, number, NUMBER, ha="center", **small)
            if position in words.shares:
                draw_text(axes, x, below + 2.7 * NUMBER, words.shares[position], NUMBER, ha="center", **small)


def _draw_box(axes: Axes, bounds: tuple[float, float, float, float], lines: Sequence[str], edge: str) -> None:
    """At left, top, width, height; the first line is the word."""
    x, y, width, height = bounds
    style = {"facecolor": "white", "edgecolor": edge, "linewidth": 0.8 if edge == LINE else 1.1, "zorder": 3}
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=4", **style))
    first, centre = y + height / 2 - LINE_PITCH * (len(lines) - 1) / 2 + 0.35 * LABEL, x + width / 2
    colour = MARK if edge == MARK else INK
    draw_text(axes, centre, first, lines[0], LABEL, ha="center", weight="bold", color=colour)
    for number, line in enumerate(lines[1:], 1):
        draw_text(axes, centre, first + LINE_PITCH * number, line, NOTE, ha="center", color=GREY)


def _draw_path(axes: Axes, points: list[Point], codes: list, marked: bool) -> None:
    path = PathPatch(Path(points, codes), facecolor="none", edgecolor=MARK if marked else LINE)
    path.set(linewidth=1.1 if marked else 0.7, zorder=2.2 if marked else 2, capstyle="butt", snap=False)
    axes.add_patch(path)


def _draw_arrow(axes: Axes, points: list[Point], marked: bool) -> None:
    """A polyline along the axes, with an arrowhead at its end."""
    (x0, y0), (x1, y1) = points[-2:]
    length, half = (5.0, 2.2) if marked else (4.0, 1.6)
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    x, y = x1 - length * dx, y1 - length * dy
    _draw_path(axes, [*points[:-1], (x, y)], [Path.MOVETO, *[Path.LINETO] * (len(points) - 1)], marked)
    corners = [(x1, y1), (x - half * dy, y - half * dx), (x + half * dy, y + half * dx)]
    axes.add_patch(Polygon(corners, facecolor=MARK if marked else LINE, edgecolor="none", zorder=2.5))
