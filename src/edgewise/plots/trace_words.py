"""The lower half of the attribution diagram: the prompt's words, the clusters that respond to them, the output.

It is laid out first, so that the panel around it knows its height, and drawn later. From bottom to top: numbers, words,
lines, boxes, the arrow, the output. Lines have the bands between texts to themselves and never run through one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path

from edgewise.core.text import visible
from edgewise.plots.canvas import BOLD, GREY, INK, LINE, draw_text, ems, fitted, percent
from edgewise.plots.style import MARK
from edgewise.plots.trace_boxes import Box, choose_boxes, share_of_key
from edgewise.tracing.result import Trace

DIRECT = 0.01
"""A cluster from which the output takes less gets no arrow."""
_LABEL, _NOTE, _NUMBER, _PITCH = 7.5, 6.5, 5.5, 8.5
"""Type sizes; lines of a box."""
_NARROWEST, _WIDEST, _APART, _MARGIN = 48.0, 110.0, 10.0, 10.0
"""Boxes, between them, inside them: the words at the arrow fit between the lines of its neighbours."""
_OUTPUT, _ARROW, _LINES = 25.0, 31.0, 24.0
"""Heights: the output's box, from there to the clusters, from there to the words."""


class _Bands(NamedTuple):
    """Where things begin: to the right of the panel's edge, and downward."""

    left: float
    output: float
    boxes: float
    lines: float
    words: float


class Words(NamedTuple):
    """The prompt, placed."""

    centres: dict[int, float]
    """Of the positions that are shown, from the left."""
    labels: dict[int, str]
    size: float
    turned: bool
    """Read upward, with their numbers, as they would not fit side by side."""
    height: float
    numbers: float
    """The height of the row of numbers."""


@dataclass(frozen=True)
class WordFlow:
    """Everything's place, in points from the top left."""

    output: list[str]
    measured: str
    """What is written at the arrow."""
    key: int
    boxes: list[Box]
    spans: list[tuple[float, float]]
    """Left and width of each box."""
    words: Words
    room: float

    @property
    def _tall(self) -> float:
        """Of a box."""
        return 8.0 + _PITCH * max(2, *(len(box.lines) for box in self.boxes))

    @property
    def height(self) -> float:
        return _OUTPUT + _ARROW + self._tall + _LINES + self.words.height + self.words.numbers

    @property
    def has_grey_arrows(self) -> bool:
        return any(box.direct >= DIRECT and not box.of_key for box in self.boxes)

    def draw(self, axes: Axes, left: float, top: float) -> None:
        boxes = top + _OUTPUT + _ARROW
        bands = _Bands(left, top, boxes, boxes + self._tall, boxes + self._tall + _LINES)
        for box, (x, wide) in zip(self.boxes, self.spans, strict=True):
            for word in box.words:
                if word in self.words.centres:
                    self._draw_line(axes, bands, box, word, left + x, left + x + wide)
            if box.lines:
                _draw_box(axes, (left + x, boxes, wide, self._tall), box.lines, MARK if box.of_key else LINE)
        self._draw_output(axes, bands)
        self._draw_words(axes, bands)

    def _draw_line(self, axes: Axes, bands: _Bands, box: Box, word: int, left: float, right: float) -> None:
        """Up from a word, past its taller neighbours, then over to a box, or between boxes to the arrow."""
        begin = bands.left + self.words.centres[word]
        end = min(max(begin, left + 7), right - 7) if box.lines else (left + right) / 2
        middle = (bands.lines + bands.words) / 2
        points = [(begin, bands.words - 1), (begin, middle), (end, middle), (end, bands.lines)]
        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        if self.words.turned:
            long = self.words.size * ems(self.words.labels[word]) * (BOLD if word == self.key else 1)
            points.insert(0, (begin, bands.words + self.words.height - long - 3))
            codes.insert(1, Path.LINETO)
        if not box.lines:
            points.append((end, bands.boxes))
            codes.append(Path.LINETO)
        _draw_path(axes, points, codes, box.of_key and word == self.key)

    def _draw_output(self, axes: Axes, bands: _Bands) -> None:
        """The box at the top, straight above where its arrow begins; other arrows come from the sides."""
        left, top, bottom = bands.left, bands.output, bands.output + _OUTPUT
        centres = [left + x + wide / 2 for x, wide in self.spans]
        begin = next(x for x, box in zip(centres, self.boxes, strict=True) if box.of_key)
        wide = _width(self.output)
        x = min(max(begin - wide / 2, left), left + self.room - wide)
        for centre, box in zip(centres, self.boxes, strict=True):
            if box.of_key or box.direct < DIRECT:
                continue
            side, middle = x if centre < x else x + wide, (top + bottom) / 2
            above = x <= centre <= x + wide
            ends = [(centre, bottom)] if above else [(centre, middle), (side, middle)]
            _draw_arrow(axes, [(centre, bands.boxes), *ends], marked=False)
        _draw_box(axes, (x, top, wide, _OUTPUT), self.output, INK)
        base = bottom + _ARROW / 2 + 0.75 * _NOTE
        half = 7.0 * ems(self.measured) / 2
        centre = min(max(begin, left + half), left + self.room - half)
        _draw_path(axes, [(begin, bands.boxes), (begin, base + 3)], [Path.MOVETO, Path.LINETO], True)
        _draw_arrow(axes, [(begin, base - _LABEL), (begin, bottom)], marked=True)
        draw_text(axes, centre, base, self.measured, 7.0, ha="center", color=MARK)

    def _draw_words(self, axes: Axes, bands: _Bands) -> None:
        words, below = self.words, bands.words + self.words.height
        turned = {"rotation": 90, "rotation_mode": "anchor", "va": "center"}
        for position, label in words.labels.items():
            of_key = {"color": MARK, "weight": "bold"} if position == self.key else {}
            x, number = bands.left + words.centres[position], str(position + 1)
            look, small = {"color": INK} | of_key, {"color": GREY} | of_key
            if words.turned:
                draw_text(axes, x, below - 2, label, words.size, ha="left", **turned, **look)
                draw_text(axes, x, below + 1, number, _NUMBER, ha="right", **turned, **small)
            else:
                draw_text(axes, x, below - 3, label, words.size, ha="center", **look)
                draw_text(axes, x, below + 1.2 * _NUMBER, number, _NUMBER, ha="center", **small)


def lay_out(trace: Trace, key: int, room: float) -> WordFlow:
    """Place everything in so many points."""
    words = _words(trace, key, room)
    placed = sorted(
        ((_centre(box, words), box) for box in choose_boxes(trace, key)), key=lambda pair: pair[0]
    )
    boxes = [box for _, box in placed]
    widths = [_width(box.lines) for box in boxes]
    spare = room - _APART * (len(boxes) - 1)
    # the widest give way
    limit = next(x for x in range(int(min(spare, _WIDEST)), 0, -1) if sum(min(x, w) for w in widths) <= spare)
    boxes = [box._replace(lines=_cut(box.lines, limit - _MARGIN)) for box in boxes]
    pulls = [50.0 if box.of_key else 1.0 for box in boxes]  # the arrow should begin above its word
    spans = _spread([centre for centre, _ in placed], [min(w, limit) for w in widths], pulls, room)
    text, probability = max(trace.logits, key=lambda pair: pair[1])
    others = f", {len(trace.logits) - 1} more" if len(trace.logits) > 1 else ""
    output = [visible(text), f"output, {percent(probability)}{others}"]
    measured = f"modulated at {percent(share_of_key(trace, key))} by"
    return WordFlow(output, measured, key, boxes, spans, words, room)


# --------------------------------------------------------------------------------------------------------------- places


def _words(trace: Trace, key: int, room: float) -> Words:
    """Side by side like a sentence, or else upright, one to a column; of a long prompt, where most began."""
    count, most = len(trace.tokens), int(room / 7.2)
    rank = sorted(
        range(count), key=lambda place: (place not in (key, count - 1), -trace.origins[place], place)
    )
    shown = sorted(rank[:most])
    labels = {place: visible(trace.tokens[place]) for place in shown}
    wide = {place: ems(label) * (BOLD if place == key else 1) for place, label in labels.items()}
    for size in (9.0, 8.5, 8.0, 7.5, 7.0, 6.5):
        widths = [max(size * wide[place], _NUMBER * ems(str(place + 1)) * BOLD) for place in shown]
        gap = min(20.0, (room - sum(widths)) / max(len(shown) - 1, 1))
        if gap >= 0.7 * size:
            left = (room - sum(widths) - gap * (len(shown) - 1)) / 2
            starts = [left + sum(widths[:i]) + gap * i for i in range(len(shown))]
            centres = {p: x + w / 2 for p, x, w in zip(shown, starts, widths, strict=True)}
            return Words(centres, labels, size, False, 1.4 * size, 1.6 * _NUMBER)
    column = min(12.0, room / len(shown))
    size = min(7.0, 0.84 * column)
    left = (room - column * len(shown)) / 2
    centres = {place: left + column * (i + 0.5) for i, place in enumerate(shown)}
    numbers = _NUMBER * BOLD * ems(str(shown[-1] + 1)) + 3
    return Words(centres, labels, size, True, size * max(wide.values()) + 4, numbers)


def _centre(box: Box, words: Words) -> float:
    """Where a box belongs: between its words and where it stands."""
    near = [words.centres[place] for place in sorted({*box.words, *box.stands}) if place in words.centres]
    return sum(near) / len(near) if near else max(words.centres.values())


def _spread(
    centres: Sequence[float], widths: Sequence[float], pulls: Sequence[float], room: float
) -> list[tuple[float, float]]:
    """Left and width of boxes: as near as possible to where they belong, in their order, none on another."""
    before = [sum(widths[:i]) + _APART * i for i in range(len(widths))]
    groups: list[tuple[float, float, int]] = []  # boxes that touch move together: place, pull, how many
    for centre, width, pull, offset in zip(centres, widths, pulls, before, strict=True):
        place, many = centre - width / 2 - offset, 1
        while groups and groups[-1][0] > place:
            other, other_pull, more = groups.pop()
            place = (other * other_pull + place * pull) / (other_pull + pull)
            pull, many = other_pull + pull, many + more
        groups.append((place, pull, many))
    spare = max(0.0, room - before[-1] - widths[-1])
    starts = [min(max(place, 0.0), spare) for place, _, many in groups for _ in range(many)]
    return [(start + offset, width) for start, offset, width in zip(starts, before, widths, strict=True)]


def _sizes(lines: Sequence[str]) -> list[float]:
    """Of a box's lines: the first is bold."""
    return [_LABEL * BOLD if place == 0 else _NOTE for place in range(len(lines))]


def _width(lines: Sequence[str]) -> float:
    needed = [size * ems(visible(line, 60)) for size, line in zip(_sizes(lines), lines, strict=True)]
    return max(_NARROWEST, max(needed, default=0.0) + _MARGIN)


def _cut(lines: Sequence[str], room: float) -> list[str]:
    return [fitted(line, room, size) for size, line in zip(_sizes(lines), lines, strict=True)]


# -------------------------------------------------------------------------------------------------------------- drawing


def _draw_box(axes: Axes, place: tuple[float, float, float, float], lines: Sequence[str], edge: str) -> None:
    """At left, top, width, height; the first line is the word."""
    x, y, wide, tall = place
    look = {"facecolor": "white", "edgecolor": edge, "linewidth": 0.8 if edge == LINE else 1.1, "zorder": 3}
    axes.add_patch(FancyBboxPatch((x, y), wide, tall, boxstyle="round,pad=0,rounding_size=4", **look))
    first = y + tall / 2 - _PITCH * (len(lines) - 1) / 2 + 0.35 * _LABEL
    draw_text(
        axes,
        x + wide / 2,
        first,
        lines[0],
        _LABEL,
        ha="center",
        weight="bold",
        color=MARK if edge == MARK else INK,
    )
    for number, line in enumerate(lines[1:], 1):
        draw_text(axes, x + wide / 2, first + _PITCH * number, line, _NOTE, ha="center", color=GREY)


def _draw_path(axes: Axes, points: list[tuple[float, float]], codes: list, marked: bool) -> None:
    path = PathPatch(Path(points, codes), facecolor="none", edgecolor=MARK if marked else LINE)
    path.set(linewidth=1.1 if marked else 0.7, zorder=2.2 if marked else 2, capstyle="butt", snap=False)
    axes.add_patch(path)


def _draw_arrow(axes: Axes, points: list[tuple[float, float]], marked: bool) -> None:
    """A line of straight pieces along the axes, with a head at its end."""
    (x0, y0), (x1, y1) = points[-2:]
    long, half = (5.0, 2.2) if marked else (4.0, 1.6)
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    x, y = x1 - long * dx, y1 - long * dy
    _draw_path(axes, [*points[:-1], (x, y)], [Path.MOVETO, *[Path.LINETO] * (len(points) - 1)], marked)
    corners = [(x1, y1), (x - half * dy, y - half * dx), (x + half * dy, y + half * dx)]
    axes.add_patch(Polygon(corners, facecolor=MARK if marked else LINE, edgecolor="none", zorder=2.5))
