"""The grid of attention maps: a dense model above its twin, the most important heads first.

    figure = draw_maps(AttentionMaps.load("runs/maps"))
    save_figure(figure, "runs/maps/attention-maps")

Everything is placed in points from the top left corner of one pair of axes, so that nothing depends on a renderer.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Unpack

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
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
    INK,
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
    shades,
    wrap,
)
from edgewise.plots.look import Look, LookArguments, check_look
from edgewise.plots.map_style import MapStyle
from edgewise.plots.style import COLUMN, MARK, PAGE

BAR_WIDTH, BAR_ROOM = 90, 110
"""Points: the colour bar, and the room that it takes beside the caption."""


class _Layout(NamedTuple):
    width: float  # of the figure
    columns: int
    side: float  # of a map
    left: float  # room for tokens beside a map, if they are shown
    below: float
    cmap: str | Colormap | None = None
    values: bool = False  # a map alone: whether its weights are printed
    is_grid: bool = False  # of all heads, a row for each layer

    def columns_of(self, panel: Panel) -> int:
        """Maps per row, so that the last row is about as long as the others."""
        if self.is_grid:
            return self.columns
        rows = math.ceil(len(panel.heads) / self.columns)
        return math.ceil(len(panel.heads) / max(rows, 1)) or 1

    def height(self, panel: Panel) -> float:
        lines = len(_type_counts(panel, self.width))
        rows = math.ceil(len(panel.heads) / self.columns_of(panel))
        grid = rows * (self.side + self.below + GAP)
        return PAD / 2 + 1.5 * TITLE + grid + 1.35 * SMALL * lines + PAD / 2


def draw_maps(maps: AttentionMaps, style: MapStyle | None = None, **look: Unpack[LookArguments]) -> Figure:
    """Draw the grid. A map alone is drawn large, with its tokens; all heads of a model, a row for each layer.

    Args:
        maps: What `collect_maps` gave, or `AttentionMaps.load`.
        style: Columns, width, colour bar, a cell to mark, printed weights.
        look: ax, title, names, cmap, width, theme and caption, as for every figure (`LookArguments`).
    """
    style = style or MapStyle()
    checked = check_look(look, len(maps.panels), unused=["colours"])
    if style.caption:
        checked = replace(checked, caption=True)
    _check_cell(style.cell, len(maps.tokens))
    names = checked.named([panel.title for panel in maps.panels])
    layout = _layout(maps, style, checked)
    wide = layout.width > 72 * COLUMN
    room = layout.width - 2 * EDGE - (BAR_ROOM if style.colour_bar and wide else 0)
    paragraphs = _caption(maps, layout, style.cell) if checked.caption else []
    lines = [line for text in paragraphs for line in wrap(text, room, SMALL)]
    heights = [layout.height(panel) for panel in maps.panels]
    above = 28 if style.colour_bar and not wide else 0  # the scale beside the caption, or above it
    foot = max(above + 1.35 * SMALL * len(lines), 26 if style.colour_bar else 0)
    height = 2 * EDGE + sum(heights) + (len(heights) - 1) * PAD + (PAD / 2 + foot if foot else 0)
    with canvas(checked, layout.width, height) as (figure, axes):
        top = EDGE
        for panel, name, panel_height in zip(maps.panels, names, heights, strict=True):
            draw_frame(axes, EDGE, top, layout.width - 2 * EDGE, panel_height)
            _draw_panel(axes, replace(panel, title=name), maps, layout, top, style.cell)
            top += panel_height + PAD
        top -= PAD / 2
        draw_paragraph(axes, EDGE, top + above, lines)
        if style.colour_bar:
            _draw_colour_bar(axes, layout.width - EDGE - BAR_WIDTH - 2, top + 1, layout.cmap)
    return figure


def _check_cell(cell: tuple[int, int] | None, n_tokens: int) -> None:
    if cell is not None and not 0 <= cell[1] <= cell[0] < n_tokens:
        raise EdgewiseError(
            f"there is no cell {cell[0] + 1},{cell[1] + 1} to mark: queries go from 1 to {n_tokens}, "
            "and a query attends to the keys up to itself"
        )


def _layout(maps: AttentionMaps, style: MapStyle, look: Look) -> _Layout:
    n_maps = max((len(panel.heads) for panel in maps.panels), default=0)
    if n_maps == 1:
        # a map alone is as large as the figure, with its tokens at the sides
        width = 72 * look.inches(COLUMN if style.narrow or len(maps.tokens) <= 24 else PAGE)
        room = SMALL * (max(ems(visible(token)) for token in maps.tokens) + 1)
        side = width - 2 * EDGE - 2 * PAD - room
        return _Layout(width, 1, side, room, room, look.cmap, style.values)
    if style.values:
        raise EdgewiseError("`values` prints the weights of a map alone: give one head")
    width = 72 * look.inches(COLUMN if style.narrow else PAGE)
    most, layer_width = style.columns or (5 if style.narrow else 9), _layer_width(maps)
    if layer_width and not style.columns:
        columns = layer_width
    else:
        rows = math.ceil(n_maps / most)
        columns = min(most, max(math.ceil(n_maps / max(rows, 1)), 4))
    side = (width - 2 * EDGE - 2 * PAD - (columns - 1) * GAP) / columns
    return _Layout(width, columns, side, 0, 0, look.cmap, False, bool(layer_width and not style.columns))


def _layer_width(maps: AttentionMaps) -> int | None:
    """Heads per layer, if every panel shows all heads of a model, layer by layer; None else."""
    names = maps.panels[0].heads if maps.panels else []
    places = [match for name in names if (match := re.fullmatch(r"L(\d+)H(\d+)", name))]
    width = max((int(match[2]) for match in places), default=0) + 1
    is_all = names == [f"L{i // width}H{i % width}" for i in range(len(names))] and len(names) > width
    alike = all(panel.heads == names == [*panel.statistics] for panel in maps.panels)
    return width if is_all and alike else None


# -------------------------------------------------------------------------------------------------------------- panels


def _draw_panel(
    axes: Axes, panel: Panel, maps: AttentionMaps, layout: _Layout, top: float, cell: tuple[int, int] | None
) -> None:
    """Title, maps and head types of one model."""
    left, right = EDGE, layout.width - EDGE
    baseline = top + PAD / 2 + TITLE
    count = _head_count(panel, maps)
    title = fitted(panel.title, right - left - 3 * PAD - SMALL * ems(count), BOLD * TITLE)
    draw_text(axes, left + PAD, baseline, title, TITLE, weight="bold")
    draw_text(axes, right - PAD, baseline, count, SMALL, ha="right", color=GREY)
    top += PAD / 2 + 1.5 * TITLE
    columns = layout.columns_of(panel)
    corners = [_corner(i, columns, layout, left + PAD, top) for i in range(len(panel.heads))]
    _draw_maps(axes, panel, maps.tokens, layout, corners)
    draw_squares(axes, corners, layout.side, LINE, 0.4)
    if cell is not None:
        _draw_marks(axes, cell, corners, layout.side / len(maps.tokens))
    top += math.ceil(len(panel.heads) / columns) * (layout.side + layout.below + GAP)
    draw_paragraph(axes, left + PAD, top, _type_counts(panel, layout.width))


def _corner(index: int, columns: int, layout: _Layout, left: float, top: float) -> tuple[float, float]:
    """Top left corner of a map."""
    row, column = divmod(index, columns)
    x = left + layout.left + column * (layout.side + GAP)
    return x, top + row * (layout.side + layout.below + GAP)


def _draw_maps(
    axes: Axes, panel: Panel, tokens: list[str], layout: _Layout, corners: Sequence[tuple[float, float]]
) -> None:
    """The maps, each with its head's name, and with its tokens if there is room."""
    longest = max(map(len, panel.heads), default=1)
    size = min(7.0 if layout.side < 60 else 9.0, 0.62 * layout.side / (0.63 * longest))
    background = {"facecolor": "white", "edgecolor": "none", "pad": 0.6} if len(tokens) < 4 else None
    for (x, y), head, weights in zip(corners, panel.heads, panel.maps, strict=True):
        draw_map(axes, weights, x, y, layout.side, layout.cmap)
        if layout.values:
            _draw_values(axes, weights, x, y, layout)
        draw_text(axes, x + layout.side - 1.5, y + 1.5, head, size, ha="right", va="top", bbox=background)
        if layout.left:
            _draw_tokens(axes, tokens, x, y, layout.side)


def _draw_values(axes: Axes, weights: np.ndarray, x: float, y: float, layout: _Layout) -> None:
    """Every weight above 0 in its cell, in two digits."""
    side = layout.side / len(weights)
    size = min(SMALL, side / 1.9)
    if size < 2.5:
        raise EdgewiseError(
            f"the weights of {len(weights)} tokens cannot be read in this width: give a larger `width`"
        )
    for query, key in np.argwhere(np.tril(weights) > 0):
        weight = float(weights[query, key])
        red, green, blue = shades(np.array([weight]), layout.cmap)[0] / 255
        colour = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.55 else INK
        text = f"{weight:.2f}".removeprefix("0") if weight < 0.995 else "1"
        centre = (x + (key + 0.5) * side, y + (query + 0.5) * side)
        draw_text(axes, *centre, text, size, ha="center", va="center", color=colour)


def _draw_marks(
    axes: Axes, cell: tuple[int, int], corners: Sequence[tuple[float, float]], cell_side: float
) -> None:
    """A frame around one cell of every map, never too small to be seen."""
    side = max(cell_side + 1.0, 4.0)
    down, right = ((position + 0.5) * cell_side - side / 2 for position in cell)
    draw_squares(axes, [(x + right, y + down) for x, y in corners], side, MARK, 1.0)


def _draw_tokens(axes: Axes, tokens: list[str], x: float, y: float, side: float) -> None:
    """Every token, or as many as can be read."""
    cell_side = side / len(tokens)
    every = math.ceil(4.5 / cell_side)
    size = min(SMALL, 0.95 * cell_side * every)
    for position in range(0, len(tokens), every):
        center, label = (position + 0.5) * cell_side, visible(tokens[position])
        draw_text(axes, x - 3, y + center, label, size, ha="right", va="center")
        upright = {"rotation": 90, "rotation_mode": "anchor"}  # placed by its end, whatever the viewer's font
        draw_text(axes, x + center, y + side + 3, label, size, ha="right", va="center", **upright)
    draw_text(axes, x - 3, y + side + 4, "query ↓\nkey →", SMALL, ha="right", va="top", color=GREY)


def _draw_colour_bar(axes: Axes, x: float, y: float, cmap: str | Colormap | None) -> None:
    scale = shades(np.linspace(0, 1, 256)[None], cmap)
    axes.imshow(scale, extent=(x, x + BAR_WIDTH, y + 6, y), aspect="auto", interpolation="none", zorder=2)
    frame = Rectangle((x, y), BAR_WIDTH, 6, facecolor="none", edgecolor=LINE, linewidth=0.4, zorder=3)
    axes.add_patch(frame)
    for value, side in ((0, "left"), (0.5, "center"), (1, "right")):
        draw_text(axes, x + BAR_WIDTH * value, y + 8, f"{value:g}", SMALL, ha=side, va="top", color=GREY)
    draw_text(axes, x + BAR_WIDTH / 2, y + 16, "attention weight", SMALL, ha="center", va="top", color=GREY)


# --------------------------------------------------------------------------------------------------------------- text


def _head_count(panel: Panel, maps: AttentionMaps) -> str:
    text = f"{len(panel.heads)} of {len(panel.statistics)} heads"
    if panel.explained is None:
        return text
    text += f" explain{'s' * (len(panel.heads) == 1)} "
    if maps.threshold is None:
        return f"{text}{panel.explained:.0%} of {maps.task}"
    return f"{text}{maps.threshold:.0%} of {maps.task} ({panel.explained:.0%} held out)"


def _type_counts(panel: Panel, width: float) -> list[str]:
    """The lines below the maps: heads of each type, with the components of the commonest hybrids."""
    if not panel.heads:
        return wrap(panel.note or "no heads", width - 2 * EDGE - 2 * PAD, SMALL)
    types = [statistics.type for statistics in panel.shown]
    counts = Counter(type.name for type in types)
    offsets = Counter(str(type) for type in types if type.name == "fixed-offset")
    hybrids = Counter(_components(type) for type in types if type.components)
    items = []
    for name in TYPES:
        details = {"fixed-offset": offsets, "hybrid": hybrids}.get(name, Counter()).most_common()
        inside = ", ".join(f"{label} {count}" if count > 1 else label for label, count in details[:4])
        inside += ", …" if len(details) > 4 else ""
        if counts[name]:
            items.append(f"{name}\u00a0{counts[name]}" + (f" ({inside})" if inside else ""))
    return wrap("Types: " + "\u00a0· ".join(items), width - 2 * EDGE - 2 * PAD, SMALL)


def _components(hybrid: HeadType) -> str:
    """The components in the order of TYPES, so that hybrids of the same ones count together."""
    ordered = sorted(hybrid.components, key=lambda type: (TYPES.index(type.name), type.offset or 0))
    return " + ".join(map(str, ordered))


def _caption(maps: AttentionMaps, layout: _Layout, cell: tuple[int, int] | None) -> list[str]:
    """What a reader needs to know who sees the figure alone."""
    if maps.threshold is not None:
        first = (
            f"Attention maps of the heads that explain {maps.threshold:.0%} of the effect on {maps.task} "
            f"({maps.metric}, {maps.prompts} prompts), most important first."
        )
    else:
        is_all = all(len(panel.heads) == len(panel.statistics) for panel in maps.panels)
        task = f", task {maps.task}" if maps.task else ""
        first = f"Attention maps of {'all' if is_all else 'given'} heads{task}."
    sentences = [first, "Query down, key right; white 0 to dark blue 1."]
    n_cells = pooled(len(maps.tokens), layout.side)
    if n_cells > 1:
        sentences.append(f"A dot is the darkest of {n_cells} x {n_cells} cells.")
    if cell is not None:
        query, key = (f"{position + 1} “{visible(maps.tokens[position])}”" for position in cell)
        sentences.append(f"Red: query {query}, key {key}.")
    return [" ".join(sentences), f"Prompt ({len(maps.tokens)} tokens): “{visible(maps.prompt, 160)}”"]
