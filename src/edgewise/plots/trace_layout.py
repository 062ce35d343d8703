"""The layout of the attribution diagram's lower half: where words, boxes and the output are, in points from the left.

It is computed before anything is drawn, so that the panel around it knows its height.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgewise.core.text import visible
from edgewise.plots.canvas import BOLD, ems, fitted, percent
from edgewise.plots.trace_boxes import Box, choose_boxes
from edgewise.tracing.result import Trace

MIN_DIRECT = 0.01
"""A cluster from which the output takes less gets no arrow."""
LABEL, NOTE, NUMBER, LINE_PITCH = 7.5, 6.5, 5.5, 8.5
"""Type sizes; distance of lines in a box."""
OUTPUT_HEIGHT, ARROW_HEIGHT, LINES_HEIGHT = 25.0, 31.0, 24.0
"""The output's box, from there to the clusters, from there to the words."""
_MIN_BOX, _MAX_BOX, _BOX_GAP, _BOX_MARGIN = 48.0, 110.0, 10.0, 10.0
"""Widths of boxes, between them, inside them: the text at the arrow fits between the lines of its neighbours."""


class Words(NamedTuple):
    """The prompt's words."""

    centres: dict[int, float]
    """By position, of those that are shown."""
    labels: dict[int, str]
    size: float
    vertical: bool
    """Read upward, with their numbers, where they do not fit side by side."""
    height: float
    numbers_height: float
    """Of the positions, and below them the share of the output that is attributed to each token."""
    shares: dict[int, str]
    """By position; empty where they do not fit."""


@dataclass(frozen=True)
class WordLayout:
    """From bottom to top: shares and numbers, words, lines, boxes, the arrow, the output."""

    output: list[str]
    arrow_label: str
    key: int
    boxes: list[Box]
    spans: list[tuple[float, float]]
    """Left and width of each box."""
    words: Words
    width: float

    @property
    def box_height(self) -> float:
        return 8.0 + LINE_PITCH * max(2, *(len(box.lines) for box in self.boxes))

    @property
    def height(self) -> float:
        boxes = OUTPUT_HEIGHT + ARROW_HEIGHT + self.box_height
        return boxes + LINES_HEIGHT + self.words.height + self.words.numbers_height

    @property
    def has_grey_arrows(self) -> bool:
        return any(box.direct >= MIN_DIRECT and not box.of_key for box in self.boxes)


def lay_out(trace: Trace, key: int, width: float, carried: float) -> WordLayout:
    """Place the words, and the boxes near theirs, in so many points; `carried` is the share at the arrow."""
    words = _lay_out_words(trace, key, width)
    boxes = sorted(choose_boxes(trace, key), key=lambda box: _centre(box, words))
    centres = [_centre(box, words) for box in boxes]
    widths = [box_width(box.lines) for box in boxes]
    spare = width - _BOX_GAP * (len(boxes) - 1)
    # the widest are narrowed first
    limit = next(
        x for x in range(int(min(spare, _MAX_BOX)), 0, -1) if sum(min(x, w) for w in widths) <= spare
    )
    boxes = [box._replace(lines=_cut(box.lines, limit - _BOX_MARGIN)) for box in boxes]
    weights = [50.0 if box.of_key else 1.0 for box in boxes]  # the arrow should begin above its word
    spans = _spread(centres, [min(w, limit) for w in widths], weights, width)
    text, probability = max(trace.logits, key=lambda pair: pair[1])
    others = f", {len(trace.logits) - 1} more" if len(trace.logits) > 1 else ""
    output = [visible(text), f"layer {trace.maps.shape[0]}, {percent(probability)}{others}"]
    arrow_label = f"modulated at {percent(carried)} by"
    return WordLayout(output, arrow_label, key, boxes, spans, words, width)


def _lay_out_words(trace: Trace, key: int, width: float) -> Words:
    """Side by side like a sentence, or else upright, one to a column; of a long prompt, those with the largest shares."""
    count, max_words = len(trace.tokens), int(width / 7.2)
    ranked = sorted(range(count), key=lambda p: (p not in (key, count - 1), -trace.origins[p], p))
    shown = sorted(ranked[:max_words])
    labels = {position: visible(trace.tokens[position]) for position in shown}
    label_ems = {
        position: ems(label) * (BOLD if position == key else 1) for position, label in labels.items()
    }
    for size in (9.0, 8.5, 8.0, 7.5, 7.0, 6.5):
        widths = [max(size * label_ems[p], NUMBER * ems(str(p + 1)) * BOLD) for p in shown]
        gap = min(20.0, (width - sum(widths)) / max(len(shown) - 1, 1))
        if gap >= 0.7 * size:
            left = (width - sum(widths) - gap * (len(shown) - 1)) / 2
            starts = [left + sum(widths[:i]) + gap * i for i in range(len(shown))]
            centres = {p: x + w / 2 for p, x, w in zip(shown, starts, widths, strict=True)}
            shares = {p: percent(trace.origins[p]) for p in shown}
            fits = all(NUMBER * ems(shares[p]) <= w + gap for p, w in zip(shown, widths, strict=True))
            return Words(centres, labels, size, False, 1.4 * size, 3.2 * NUMBER, shares if fits else {})
    column = min(12.0, width / len(shown))
    size = min(7.0, 0.84 * column)
    left = (width - column * len(shown)) / 2
    centres = {position: left + column * (i + 0.5) for i, position in enumerate(shown)}
    numbers = NUMBER * BOLD * ems(str(shown[-1] + 1)) + 3
    return Words(centres, labels, size, True, size * max(label_ems.values()) + 4, numbers, {})


def _centre(box: Box, words: Words) -> float:
    """Where a box belongs: above its words, or else where its features are."""
    centres = [
        [words.centres[p] for p in where if p in words.centres] for where in (box.words, box.positions)
    ]
    near = centres[0] or centres[1]
    return sum(near) / len(near) if near else max(words.centres.values())


def _spread(
    centres: Sequence[float], widths: Sequence[float], weights: Sequence[float], width: float
) -> list[tuple[float, float]]:
    """Left and width of boxes: as near as possible to their centres, in their order, without overlap."""
    before = [sum(widths[:i]) + _BOX_GAP * i for i in range(len(widths))]
    groups: list[tuple[float, float, int]] = []  # boxes that touch move together: left, weight, how many
    for centre, box, weight, offset in zip(centres, widths, weights, before, strict=True):
        left, count = centre - box / 2 - offset, 1
        while groups and groups[-1][0] > left:
            other, other_weight, other_count = groups.pop()
            left = (other * other_weight + left * weight) / (other_weight + weight)
            weight, count = other_weight + weight, count + other_count
        groups.append((left, weight, count))
    spare = max(0.0, width - before[-1] - widths[-1])
    starts = [min(max(left, 0.0), spare) for left, _, count in groups for _ in range(count)]
    return [(start + offset, box) for start, offset, box in zip(starts, before, widths, strict=True)]


def _sizes(lines: Sequence[str]) -> list[float]:
    """Type sizes of a box's lines: the first is bold."""
    return [LABEL * BOLD if number == 0 else NOTE for number in range(len(lines))]


def box_width(lines: Sequence[str]) -> float:
    needed = [size * ems(visible(line, 60)) for size, line in zip(_sizes(lines), lines, strict=True)]
    return max(_MIN_BOX, max(needed, default=0.0) + _BOX_MARGIN)


def _cut(lines: Sequence[str], width: float) -> list[str]:
    return [fitted(line, width, size) for size, line in zip(_sizes(lines), lines, strict=True)]
