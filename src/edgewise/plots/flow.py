"""Flow: tokens across, layers upward, a line for each open attention edge. Dense above twin, for any prompt."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from edgewise.core.text import visible
from edgewise.flow.result import Edge, Flow, Flows
from edgewise.plots.style import COLUMN, DENSE, model_colours, model_name, picture

CUT = 0.01
"""A dense model's edges with less weight are not drawn: they could not be seen."""
MOST = 10_000
"""Lines in one picture."""
INK = "#222222"
"""For lines of the dense model, of which most are faint."""
_MUTED = ("#332288", "#cc6677", "#117733", "#aa4499", "#999933", "#88ccee", "#882255", "#44aa99", "#ddcc77")


def draw_flow(flows: Flows, colour_heads: bool = False) -> Figure:
    """One panel for each model and prompt; a line's opacity is its weight, and its hue may be its head."""
    first, heads = flows.rows[0], max(flow.heads for row in flows.rows for flow in row)
    most = MOST // sum(map(len, flows.rows))
    hues = _hues(heads) if colour_heads else None
    upright = all(len(visible(token)) <= 2 for flow in first for token in (*flow.tokens, *flow.answers))
    width = max(COLUMN, 0.6 + sum(0.12 * len(flow.tokens) + 0.1 for flow in first))
    abreast = int(3 * width)  # names of heads
    height = 1.0 + sum(0.3 + min(4.0, max(1.0, 0.26 * row[0].layers)) for row in flows.rows)
    height += (0 if upright else 0.6) + (0.15 * math.ceil(heads / abreast) if hues else 0)
    prompts = ", ".join(visible(flow.prompt, 60) for flow in first)
    title, caption = f"Attention edges on: {prompts}", _caption(flows, most, colour_heads)
    with picture(width, height, title, caption) as figure:
        ratios = [0.01] * bool(hues) + [max(4, row[0].layers) for row in flows.rows]
        widths = [len(flow.tokens) for flow in first]
        grid = figure.add_gridspec(len(ratios), len(first), height_ratios=ratios, width_ratios=widths)
        if hues:
            names = figure.add_subplot(grid[0, :])
            names.axis("off")
            names.legend(
                [Line2D([], [], color=hue) for hue in hues], [f"H{head}" for head in range(heads)],
                loc="lower left", ncols=abreast, handlelength=0.8, columnspacing=0.6, handletextpad=0.3,
                borderaxespad=0, borderpad=0,
            )  # fmt: skip
        colours = model_colours([row[0].kind for row in flows.rows])
        for i, (row, colour) in enumerate(zip(flows.rows, colours, strict=True)):
            for j, flow in enumerate(row):
                axes = figure.add_subplot(grid[i + bool(hues), j])
                lines = hues or [INK if colour == DENSE else colour] * heads
                _draw_panel(axes, flow, seen_edges(flow)[-most:], lines, upright)
                above = f"{visible(flow.prompt)}: " if i == 0 and len(row) > 1 else ""
                axes.set_title(f"{above}{_count(len(flow.edges), 'open edge')}", fontsize=7)
                axes.tick_params(labelleft=j == 0, labelbottom=i == len(flows.rows) - 1)
                if j == 0:
                    axes.set_ylabel(f"{model_name(flow.model, 24)}\n({flow.kind})", color=colour, fontsize=7)
    return figure


def seen_edges(flow: Flow) -> list[Edge]:
    """All that can be seen, the weakest first."""
    seen = [edge for edge in flow.edges if flow.kind != "dense" or edge.weight >= CUT]
    return sorted(seen, key=lambda edge: edge.weight)


def _draw_panel(axes: Axes, flow: Flow, edges: Sequence[Edge], hues: Sequence[str], upright: bool) -> None:
    t = len(flow.tokens)
    levels = np.arange(flow.layers + 1)
    axes.plot(*np.meshgrid(np.arange(t), levels), ".", color="#bbbbbb", ms=1.5, zorder=1)
    lane = 0.5 / flow.heads  # each head beside the last
    lines, colours = [], []
    for edge in edges:
        shift = (edge.head - (flow.heads - 1) / 2) * lane
        lines.append([(edge.key + shift, edge.layer), (edge.query + shift, edge.layer + 1)])
        # in steps, which make a smaller PDF
        colours.append((*to_rgb(hues[edge.head]), min(1.0, math.ceil(50 * edge.weight) / 50)))
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=0.7, zorder=2), autolim=False)
    axes.set_xlim(-0.6, t - 0.4)
    axes.set_ylim(-0.15, flow.layers + 0.15)
    turn = 0 if upright else 90
    axes.set_xticks(range(t), [visible(token) for token in flow.tokens], rotation=turn)
    answered = [place for place, answer in enumerate(flow.answers) if answer]
    above = axes.secondary_xaxis("top")
    said = [visible(flow.answers[place]) for place in answered]
    if answered == [t - 1]:  # it may reach over the tokens before
        above.set_xticks([t - 0.5], said, ha="right", weight="bold")
    else:
        above.set_xticks(answered, said, rotation=turn, weight="bold")
    above.spines[:].set_visible(False)
    axes.set_yticks(levels[:-1] + 0.5, [f"L{layer}" for layer in levels[:-1]])
    for each in (axes, above):
        each.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)


def _hues(heads: int) -> list[str]:
    """Told apart by the colour-blind as far as they can be."""
    if heads <= len(_MUTED):
        return [*_MUTED[:heads]]
    return [to_hex(colormaps["viridis"](0.9 * head / (heads - 1))) for head in range(heads)]


def _caption(flows: Flows, most: int, colour_heads: bool) -> str:
    """What a reader needs who finds the picture elsewhere."""
    look = "opacity: weight, hue: head" if colour_heads else "opacity: weight"
    parts = [f"A line for each open attention edge, from the key (below) to the query (above); {look}."]
    everything = [flow for row in flows.rows for flow in row]
    left_out = sum(len(flow.edges) - len(seen_edges(flow)) for flow in everything)
    if left_out:
        parts.append(
            f"Left out, as it could not be seen: {_count(left_out, 'edge')} of the dense model with a weight under {CUT}."
        )
    if any(len(seen_edges(flow)) > most for flow in everything):
        parts.append(f"Of each panel the {most:,} heaviest are drawn.")
    parts.append("Below: what is read. Above: what the model says there.")
    return " ".join(parts)
