"""The upper half of the attribution diagram: the heads that carry a key to the last query, as maps and in words."""

import math
from dataclasses import dataclass
from functools import cached_property

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from edgewise.plots.canvas import GREY, LINE, draw_map, draw_squares, draw_text, ems, percent
from edgewise.plots.style import MARK
from edgewise.tracing.result import Trace

MOST = 60
"""Maps in one panel."""
_LARGEST, _GAP = 54.0, 6.0  # a map, between maps
_NAMED = 6  # of the dense model: so many maps, or less, have a name and a part like the twin's


@dataclass(frozen=True)
class Carrying:
    """The fewest heads of a model that carry a share of what attention brings from a key to the last query."""

    trace: Trace
    title: str
    key: int
    share: float

    @property
    def query(self) -> int:
        return len(self.trace.tokens) - 1

    @cached_property
    def heads(self) -> list[tuple[int, int, float]]:
        """Layer, head and part, most important first."""
        return self.trace.heads_at(self.share, key=self.key, query=self.query)

    @property
    def shown(self) -> list[tuple[int, int, float]]:
        return self.heads[:MOST]

    def looks_there(self, layer: int, head: int) -> bool:
        """Whether a head maps the key to the query: the query gives this key more weight than any other."""
        row = self.trace.maps[layer, head, self.query]
        return bool(row[self.key] > 0 and (row >= row[self.key]).sum() == 1)

    @cached_property
    def looking(self) -> int:
        return sum(self.looks_there(layer, head) for layer, head, _ in self.heads)

    @property
    def all_look_there(self) -> bool:
        return self.looking == len(self.heads) > 0

    @property
    def cell(self) -> str:
        return f"key pos {self.key + 1} to query pos {self.query + 1}"

    @property
    def sentence(self) -> str:
        """What they do; "All heads map ..." only if that is so."""
        count = len(self.heads)
        if not count:
            return f"No head carries anything from {self.cell}"
        if count == 1:
            return f"The only head {'maps' if self.looking else 'does not map'} {self.cell}"
        if self.all_look_there:
            return f"{'Both' if count == 2 else 'All'} heads map {self.cell}"
        return f"{self.looking or 'None'} of {count} heads map{'s' * (self.looking < 2)} {self.cell}"

    @property
    def count(self) -> str:
        layers, width = self.trace.maps.shape[:2]
        verb = "carries" if len(self.heads) == 1 else "carry"
        return f"{len(self.heads)} of {layers * width} heads {verb} {100 * self.share:.4g}%"

    @property
    def cut_off(self) -> str:
        return f" ({MOST} shown)" if len(self.heads) > MOST else ""


@dataclass(frozen=True)
class Grid:
    """Maps in rows, perhaps with room for a name above each and its part below."""

    columns: int
    rows: int
    side: float
    gap: float
    above: float = 0.0
    below: float = 0.0

    @property
    def height(self) -> float:
        return max(0.0, self.rows * self._down - self.gap)

    @property
    def _down(self) -> float:
        return self.above + self.side + self.below + self.gap

    def corners(self, count: int, left: float, top: float, room: float) -> list[tuple[float, float]]:
        """Of so many maps, in the middle of the room."""
        left += (room - self.columns * (self.side + self.gap) + self.gap) / 2
        places = [divmod(place, self.columns) for place in range(count)]
        return [
            (left + column * (self.side + self.gap), top + self.above + row * self._down)
            for row, column in places
        ]


def named_grid(count: int, room: float, most: int = 6) -> Grid:
    """In rows of about the same length, of six or less unless there are very many."""
    most = most if count <= 16 else int(room / 38)
    rows = math.ceil(count / most)
    columns = math.ceil(count / max(rows, 1)) or 1
    return Grid(columns, rows, min(_LARGEST, (room + _GAP) / columns - _GAP), _GAP, above=9, below=5)


def wall(count: int, wide: float, tall: float) -> Grid:
    """A few with their names; many as large as the room allows, which has to grow before they become tiny."""
    if count <= _NAMED:
        return named_grid(count, wide, most=2)
    found = []
    for columns in range(1, 11):
        rows, widest = math.ceil(count / columns), (wide + 4) / columns - 4
        found.append(
            Grid(columns, rows, min(_LARGEST, widest, max((tall + 4) / rows - 4, min(widest, 20.0))), 4.0)
        )
    return max(found, key=lambda grid: grid.side)


def draw_maps(axes: Axes, heads: Carrying, grid: Grid, left: float, top: float, room: float) -> None:
    """The cell is red: filled if the head looks there most, else framed; never too small to be seen."""
    side, corners = grid.side, grid.corners(len(heads.shown), left, top, room)
    names = [f"L{layer}-H{head}" for layer, head, _ in heads.shown]
    free = (
        0.62 if len(heads.trace.tokens) > 3 else 0.45
    )  # above the diagonal, for a name that can be read there
    inside = min(6.5, free * side / max(map(ems, names), default=1))
    cell = side / len(heads.trace.tokens)
    size = max(cell, min(3.6, side / 8))
    right, down = (min(max((at + 0.5) * cell - size / 2, 0), side - size) for at in (heads.key, heads.query))
    cells: dict[bool, list[Rectangle]] = {True: [], False: []}
    for (x, y), name, (layer, head, part) in zip(corners, names, heads.shown, strict=True):
        draw_map(axes, heads.trace.maps[layer, head], x, y, side)
        cells[heads.looks_there(layer, head)].append(Rectangle((x + right, y + down), size, size))
        if grid.above:
            draw_text(axes, x + side / 2, y - 2.5, name, min(7.0, side / ems(name)), ha="center")
            draw_text(axes, x + side / 2, y + side + 7, percent(part), 6.0, ha="center", color=GREY)
        elif inside >= 5:
            draw_text(axes, x + side - 1.5, y + 1.5, name, inside, ha="right", va="top")
    draw_squares(axes, corners, side, LINE, 0.4)
    filled = PatchCollection(cells[True], facecolor=MARK, edgecolor="white", linewidth=0.4, zorder=2.5)
    framed = PatchCollection(cells[False], facecolor="none", edgecolor=MARK, linewidth=0.9, zorder=4)
    for each in (filled, framed):
        axes.add_collection(each, autolim=False)
