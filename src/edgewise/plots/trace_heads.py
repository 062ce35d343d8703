"""The upper half of the attribution diagram: the heads that carry a key to the last query, as maps and in a sentence."""

import math
from dataclasses import dataclass
from functools import cached_property

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Colormap
from matplotlib.patches import Rectangle

from edgewise.plots.canvas import (
    GREY,
    INK,
    LINE,
    SMALL,
    draw_map,
    draw_paragraph,
    draw_squares,
    draw_text,
    ems,
    percent,
    wrap,
)
from edgewise.plots.style import MARK
from edgewise.tracing.result import Trace

MAX_MAPS = 60
"""Maps in one panel."""
_MAX_SIDE, _GAP = 54.0, 6.0  # of a map, between maps
_FEW_SIDES = {1: 88.0, 2: 88.0, 3: 80.0, 4: 68.0}  # of a map, where so few have the panel to themselves
_MIN_WALL, _MAX_WALL = 12, 300
"""Maps in a wall of all heads of a model."""
_MAX_NAMED = 6  # maps of the dense model that have a name above and a share below, as the twin's have


@dataclass(frozen=True)
class CarryingHeads:
    """The fewest heads of a model that carry a share of the flow from a key to the last query."""

    trace: Trace
    title: str
    key: int
    share: float
    up: bool = False
    """Whether the first query is at the bottom of a map."""
    cmap: str | Colormap | None = None

    @property
    def query(self) -> int:
        return len(self.trace.tokens) - 1

    @cached_property
    def heads(self) -> list[tuple[int, int, float]]:
        """Layer, head and its part of the flow, largest first."""
        return self.trace.heads_at(self.share, key=self.key, query=self.query)

    @property
    def carried(self) -> float:
        """The share of the flow that they carry together."""
        return sum(share for _, _, share in self.heads)

    @property
    def shown(self) -> list[tuple[int, int, float]]:
        return self.heads[:MAX_MAPS]

    def maps_key(self, layer: int, head: int) -> bool:
        """Whether a head maps the key to the query: the query gives this key more weight than any other."""
        weights = self.trace.maps[layer, head, self.query]
        return bool(weights[self.key] > 0 and (weights >= weights[self.key]).sum() == 1)

    @cached_property
    def n_mapping(self) -> int:
        return sum(self.maps_key(layer, head) for layer, head, _ in self.heads)

    @property
    def all_map(self) -> bool:
        return self.n_mapping == len(self.heads) > 0

    @property
    def edge(self) -> str:
        return f"key pos {self.key + 1} to query pos {self.query + 1}"

    @property
    def sentence(self) -> str:
        """How many of the heads map the key to the query; "All heads map ..." only if all do."""
        count = len(self.heads)
        if not count:
            return f"No head carries anything from {self.edge}"
        if count == 1:
            return f"The only head {'maps' if self.n_mapping else 'does not map'} {self.edge}"
        if self.all_map:
            return f"{'Both' if count == 2 else 'All'} heads map {self.edge}"
        return f"{self.n_mapping or 'None'} of {count} heads map{'s' * (self.n_mapping < 2)} {self.edge}"

    @property
    def count(self) -> str:
        layers, width = self.trace.maps.shape[:2]
        verb = "carries" if len(self.heads) == 1 else "carry"
        return f"{len(self.heads)} of {layers * width} heads {verb} {100 * self.share:.4g}%"

    @property
    def is_wall(self) -> bool:
        """Whether all heads of a dense model are drawn beside its twin's, those needed outlined."""
        layers, width = self.trace.maps.shape[:2]
        return _MIN_WALL <= layers * width <= _MAX_WALL

    def cell(self, side: float, size: float) -> tuple[float, float]:
        """Where the key's cell is in a map, from its left and top, a square of `size` around it."""
        step, row = side / len(self.trace.tokens), self.query
        row = len(self.trace.tokens) - 1 - row if self.up else row
        right, down = (min(max((at + 0.5) * step - size / 2, 0), side - size) for at in (self.key, row))
        return right, down

    @property
    def cut_off(self) -> str:
        return f" ({MAX_MAPS} shown)" if len(self.heads) > MAX_MAPS and not self.is_wall else ""


@dataclass(frozen=True)
class Grid:
    """Maps in rows, in points, with room for a name above each and its share below if they are named."""

    columns: int
    rows: int
    side: float
    gap: float
    above: float = 0.0
    below: float = 0.0
    foot: float = 0.0
    """Below all rows."""

    @property
    def height(self) -> float:
        return max(0.0, self.rows * self._row_height - self.gap) + self.foot

    @property
    def _row_height(self) -> float:
        return self.above + self.side + self.below + self.gap

    def corners(self, count: int, left: float, top: float, width: float) -> list[tuple[float, float]]:
        """Top left corners of so many maps, the grid centred in the width."""
        left += (width - self.columns * (self.side + self.gap) + self.gap) / 2
        cells = [divmod(number, self.columns) for number in range(count)]
        return [
            (left + column * (self.side + self.gap), top + self.above + row * self._row_height)
            for row, column in cells
        ]


def named_grid(count: int, width: float, max_columns: int = 6) -> Grid:
    """Named maps in rows of about the same length, of six or less unless there are very many; few are large."""
    max_columns = max_columns if count <= 16 else int(width / 38)
    rows = math.ceil(count / max_columns)
    columns = math.ceil(count / max(rows, 1)) or 1
    side = _FEW_SIDES.get(count, _MAX_SIDE) if max_columns > 2 else _MAX_SIDE
    return Grid(columns, rows, min(side, (width + _GAP) / columns - _GAP), _GAP, above=9, below=5)


def dense_grid(heads: CarryingHeads, width: float, height: float) -> Grid:
    """The dense model's maps: a wall of all its heads, a row for each layer; of a large model those needed, up to six with
    names, more as large as they fit."""
    count = len(heads.shown)
    if count <= _MAX_NAMED and not heads.is_wall:
        return named_grid(count, width, max_columns=2)
    if heads.is_wall:
        layers, columns = heads.trace.maps.shape[:2]
        gap, lines = 2.0, 1.35 * SMALL * len(_wall_lines(heads, width))
        side = min((width + gap) / columns - gap, max((height - lines + gap) / layers - gap, 9.0))
        return Grid(columns, layers, side, gap, foot=lines + 3)
    grids = []
    for columns in range(1, 11):
        rows, widest = math.ceil(count / columns), (width + 4) / columns - 4
        side = min(_MAX_SIDE, widest, max((height + 4) / rows - 4, min(widest, 20.0)))
        grids.append(Grid(columns, rows, side, 4.0))
    return max(grids, key=lambda grid: grid.side)


def draw_wall(axes: Axes, heads: CarryingHeads, grid: Grid, left: float, top: float, width: float) -> None:
    """All heads of a model, the last layer at the top, those needed outlined, the key's cell red where it is attended to."""
    layers, columns = heads.trace.maps.shape[:2]
    corners = grid.corners(layers * columns, left, top, width)
    needed = {(layer, head) for layer, head, _ in heads.heads}
    cell = grid.side / len(heads.trace.tokens)
    size = max(cell, min(2.4, grid.side / 5))
    right, down = heads.cell(grid.side, size)
    outlined, red = [], []
    for number, (x, y) in enumerate(corners):
        layer, head = layers - 1 - number // columns, number % columns
        draw_map(axes, heads.trace.maps[layer, head], x, y, grid.side, heads.cmap, heads.up)
        if heads.maps_key(layer, head):
            red.append(Rectangle((x + right, y + down), size, size))
        if (layer, head) in needed:
            outlined.append((x, y))
    draw_squares(axes, corners, grid.side, LINE, 0.3)
    draw_squares(axes, outlined, grid.side, INK, 0.9)
    axes.add_collection(PatchCollection(red, facecolor=MARK, edgecolor="none", zorder=4), autolim=False)
    bottom = max((y for _, y in corners), default=top) + grid.side
    draw_paragraph(axes, left, bottom + 3, _wall_lines(heads, width))


def _wall_lines(heads: CarryingHeads, width: float) -> list[str]:
    """The needed heads by name, with their shares."""
    needed = [f"L{layer}-H{head}\u00a0{percent(share)}" for layer, head, share in heads.heads]
    more = f", {len(needed) - _MAX_NAMED} more" if len(needed) > _MAX_NAMED else ""
    return wrap("Outlined: " + ", ".join(needed[:_MAX_NAMED]) + more, width, SMALL) if needed else []


def draw_maps(axes: Axes, heads: CarryingHeads, grid: Grid, left: float, top: float, width: float) -> None:
    """The key's cell is red: filled if the head maps the key to the query, else framed; never too small to be seen."""
    side, corners = grid.side, grid.corners(len(heads.shown), left, top, width)
    names = [f"L{layer}-H{head}" for layer, head, _ in heads.shown]
    # the share of the side that is free above the diagonal, for a name inside the map
    free = 0.62 if len(heads.trace.tokens) > 3 else 0.45
    inside = min(6.5, free * side / max(map(ems, names), default=1))
    cell = side / len(heads.trace.tokens)
    size = max(cell, min(3.6, side / 8))
    right, down = heads.cell(side, size)
    cells: dict[bool, list[Rectangle]] = {True: [], False: []}
    for (x, y), name, (layer, head, share) in zip(corners, names, heads.shown, strict=True):
        draw_map(axes, heads.trace.maps[layer, head], x, y, side, heads.cmap, heads.up)
        cells[heads.maps_key(layer, head)].append(Rectangle((x + right, y + down), size, size))
        if grid.above:
            draw_text(axes, x + side / 2, y - 2.5, name, min(7.0, side / ems(name)), ha="center")
            draw_text(axes, x + side / 2, y + side + 7, percent(share), 6.0, ha="center", color=GREY)
        elif inside >= 5:
            # in the half that no query sees
            at = (y + side - 1.5, "bottom") if heads.up else (y + 1.5, "top")
            draw_text(axes, x + side - 1.5, at[0], name, inside, ha="right", va=at[1])
    draw_squares(axes, corners, side, LINE, 0.4)
    filled = PatchCollection(cells[True], facecolor=MARK, edgecolor="white", linewidth=0.4, zorder=2.5)
    framed = PatchCollection(cells[False], facecolor="none", edgecolor=MARK, linewidth=0.9, zorder=4)
    for collection in (filled, framed):
        axes.add_collection(collection, autolim=False)
