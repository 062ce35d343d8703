"""Flow: tokens across, layers upward, a line for each open attention edge, a dense model above its twin."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Unpack

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axes._secondary_axes import SecondaryAxis
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D

from edgewise.core.text import visible
from edgewise.flow.result import Edge, Flow, Flows
from edgewise.plots.canvas import ems
from edgewise.plots.look import LookArguments, check_look
from edgewise.plots.style import COLUMN, DENSE, PAGE, Picture, model_colours, model_name, picture, shown

MIN_WEIGHT = 0.01
"""A dense model's edges of less weight are not drawn: they would be invisible."""
MAX_LINES = 10_000
"""Lines in one figure."""
INK = "#222222"
"""Lines of the dense model, most of which are faint."""
_MUTED = ("#332288", "#cc6677", "#117733", "#aa4499", "#999933", "#88ccee", "#882255", "#44aa99", "#ddcc77")


class _FlowLayout(NamedTuple):
    width: float  # inches
    height: float
    upright: bool  # whether the tokens are short enough to be written across
    names_per_line: int  # of heads, in the legend
    max_lines: int  # per panel


def draw_flow(flows: Flows, colour_heads: bool = False, **look: Unpack[LookArguments]) -> Figure:
    """Draw one panel for each model and prompt; the opacity of a line is its weight.

    Args:
        flows: What `collect_flow` gave, or `Flows.load`.
        colour_heads: Give each head a hue of its own.
        look: ax, title, names, colours, width, theme and caption, as for every figure (`LookArguments`).
    """
    checked = check_look(look, len(flows.rows), unused=["cmap"])
    heads = max(flow.heads for row in flows.rows for flow in row)
    hues = _head_hues(heads) if colour_heads else None
    layout = _layout(flows, heads, colour_heads)
    first = flows.rows[0]
    title = f"Attention edges on: {', '.join(visible(flow.prompt, 60) for flow in first)}"
    size = (layout.width, layout.height)
    colours = checked.coloured(model_colours([row[0].kind for row in flows.rows]))
    names = checked.named([f"{model_name(row[0].model, 24)}\n({row[0].kind})" for row in flows.rows])
    with picture(checked, size, title, _caption(flows, layout, colour_heads)) as figure:
        ratios = [0.01] * colour_heads + [max(4, row[0].layers) for row in flows.rows]
        widths = [len(flow.tokens) for flow in first]
        grid = figure.add_gridspec(len(ratios), len(first), height_ratios=ratios, width_ratios=widths)
        if hues:
            _draw_legend(figure, grid[0, :], hues, layout.names_per_line)
        for i, (row, colour, name) in enumerate(zip(flows.rows, colours, names, strict=True)):
            line_colours = hues or [INK if colour == DENSE else colour] * heads
            for j, flow in enumerate(row):
                axes = figure.add_subplot(grid[i + colour_heads, j])
                _draw_panel(axes, flow, layout, line_colours)
                prompt = f"{visible(flow.prompt)}: " if i == 0 and len(row) > 1 else ""
                axes.set_title(f"{prompt}{_count(len(flow.edges), 'open edge')}", fontsize=7)
                axes.tick_params(labelleft=j == 0, labelbottom=i == len(flows.rows) - 1)
                if j == 0:
                    axes.set_ylabel(name, color=colour, fontsize=7)
    return shown(figure)


def visible_edges(flow: Flow) -> list[Edge]:
    """Edges that are heavy enough to be seen, the lightest first."""
    edges = [edge for edge in flow.edges if flow.kind != "dense" or edge.weight >= MIN_WEIGHT]
    return sorted(edges, key=lambda edge: edge.weight)


def heaviest_edges(edges: Sequence[Edge]) -> list[Edge]:
    """Of the heads' edges between the same two tokens in a layer, which would lie on each other, the heaviest."""
    return [*{(edge.layer, edge.query, edge.key): edge for edge in edges}.values()]


def _layout(flows: Flows, heads: int, colour_heads: bool) -> _FlowLayout:
    first = flows.rows[0]
    upright = all(len(visible(token)) <= 2 for flow in first for token in (*flow.tokens, *flow.answers))
    longest = max(ems(visible(token)) for flow in first for token in (*flow.tokens, *flow.answers[:-1]))
    narrow = max(COLUMN, 0.6 + sum(0.12 * len(flow.tokens) + 0.1 for flow in first))
    level = 0.6 + sum(
        len(flow.tokens) * (7 * longest + 4) / 72 for flow in first
    )  # with the tokens side by side
    upright = upright or level <= PAGE
    width = narrow if narrow >= level or not upright else level
    names_per_line = int(3 * width)
    height = 1.0 + sum(0.3 + min(4.0, max(1.0, 0.26 * row[0].layers)) for row in flows.rows)
    height += (0 if upright else 0.6) + (0.15 * math.ceil(heads / names_per_line) if colour_heads else 0)
    return _FlowLayout(width, height, upright, names_per_line, MAX_LINES // sum(map(len, flows.rows)))


def _draw_legend(
    figure: Picture | SubFigure, cell: SubplotSpec, hues: Sequence[str], names_per_line: int
) -> None:
    """The hue of each head."""
    axes = figure.add_subplot(cell)
    axes.axis("off")
    axes.legend(
        [Line2D([], [], color=hue) for hue in hues], [f"H{head}" for head in range(len(hues))],
        loc="lower left", ncols=names_per_line, handlelength=0.8, columnspacing=0.6, handletextpad=0.3,
        borderaxespad=0, borderpad=0, alignment="left", title="heads, their lines beside each other",
        title_fontsize=6,
    )  # fmt: skip


def _draw_panel(axes: Axes, flow: Flow, layout: _FlowLayout, colours: Sequence[str]) -> None:
    """The edges of one model on one prompt; `colours`: of each head."""
    n_tokens = len(flow.tokens)
    levels = np.arange(flow.layers + 1)
    axes.plot(*np.meshgrid(np.arange(n_tokens), levels), ".", color="#bbbbbb", ms=1.5, zorder=1)
    by_head, edges = len({*colours}) > 1, visible_edges(flow)
    edges = (edges if by_head else heaviest_edges(edges))[-layout.max_lines :]
    axes.add_collection(_edge_lines(edges, flow.heads, colours, by_head), autolim=False)
    axes.set_xlim(-0.6, n_tokens - 0.4)
    axes.set_ylim(-0.15, flow.layers + 0.15)
    rotation = 0 if layout.upright else 90
    axes.set_xticks(range(n_tokens), [visible(token) for token in flow.tokens], rotation=rotation)
    above = _draw_answers(axes, flow, rotation)
    axes.set_yticks(levels[:-1] + 0.5, [f"L{layer}" for layer in levels[:-1]])
    axes.tick_params(length=0, pad=2)
    above.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)


def _edge_lines(edges: Sequence[Edge], heads: int, colours: Sequence[str], by_head: bool) -> LineCollection:
    """A line from key to query for each edge; with a hue for each head, the lines of different heads beside each other."""
    spacing = 0.5 / heads
    lines, line_colours = [], []
    for edge in edges:
        shift = (edge.head - (heads - 1) / 2) * spacing if by_head else 0.0
        lines.append([(edge.key + shift, edge.layer), (edge.query + shift, edge.layer + 1)])
        opacity = min(1.0, math.ceil(50 * edge.weight) / 50)  # few different ones make a smaller PDF
        line_colours.append((*to_rgb(colours[edge.head]), opacity))
    return LineCollection(lines, colors=line_colours, linewidths=0.7, zorder=2)


def _draw_answers(axes: Axes, flow: Flow, rotation: int) -> SecondaryAxis:
    """What the model predicts, above the panel."""
    above = axes.secondary_xaxis("top")
    positions = [i for i, answer in enumerate(flow.answers) if answer]
    answers = [visible(flow.answers[i]) for i in positions]
    last = len(flow.tokens) - 1
    if positions == [last]:  # it may extend over the tokens to its left
        above.set_xticks([last + 0.5], answers, ha="right", weight="bold")
    else:
        above.set_xticks(positions, answers, rotation=rotation, weight="bold")
    above.spines[:].set_visible(False)
    return above


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def _head_hues(heads: int) -> list[str]:
    """A hue for each head, distinguishable by the colour-blind as far as possible."""
    if heads <= len(_MUTED):
        return [*_MUTED[:heads]]
    return [to_hex(colormaps["viridis"](0.9 * head / (heads - 1))) for head in range(heads)]


def _caption(flows: Flows, layout: _FlowLayout, colour_heads: bool) -> str:
    """What a reader needs to know who sees the figure alone."""
    encoding = (
        "opacity: weight, hue: head, whose lines are beside each other"
        if colour_heads
        else "opacity: weight of the heaviest head"
    )
    sentences = [
        f"A line for each open attention edge{'' if colour_heads else ' of any head'}, from the key (below) to the query "
        f"(above); {encoding}."
    ]
    all_flows = [flow for row in flows.rows for flow in row]
    n_hidden = sum(len(flow.edges) - len(visible_edges(flow)) for flow in all_flows)
    if n_hidden:
        sentences.append(
            f"Left out, as it could not be seen: {_count(n_hidden, 'edge')} of the dense model with a weight under "
            f"{MIN_WEIGHT}."
        )
    lines = visible_edges if colour_heads else lambda flow: heaviest_edges(visible_edges(flow))
    if any(len(lines(flow)) > layout.max_lines for flow in all_flows):
        sentences.append(f"Of each panel the {layout.max_lines:,} heaviest are drawn.")
    sentences.append("Below: what is read. Above: what the model says there.")
    return " ".join(sentences)
