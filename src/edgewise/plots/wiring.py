"""Circuit wiring: the heads of a circuit in the grid of all heads, and the edges between them."""

import re
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.path import Path as Line
from matplotlib.ticker import MaxNLocator

from edgewise.circuits.result import CircuitResult, ModelCircuit
from edgewise.core.text import visible
from edgewise.plots.curves import prompts_used
from edgewise.plots.style import COLUMN, TARGET, model_colours, model_name, picture

ENTRY = {"q": -0.25, "k": 0.0, "v": 0.25}
"""Where a line enters a head, from its middle."""
RIM = 0.2
_EDGE = re.compile(r"L(\d+)H(\d+) -> L(\d+)([HG])(\d+)\.([qkv])")
_HEAD = re.compile(r"L(\d+)H(\d+)")


class HeadEdge(NamedTuple):
    """An edge between heads, or its part to one of the heads that share a key or value."""

    source: tuple[int, int]
    """Layer and head."""
    target: tuple[int, int]
    kind: str
    """q, k or v"""
    weight: float


def circuit_heads(model: ModelCircuit) -> set[tuple[int, int]]:
    """Layer and head of those that explain enough."""
    names = [name for name, _ in model.heads.ranking[: model.heads.needed]] if model.heads else []
    return {(int(found[1]), int(found[2])) for name in names if (found := _HEAD.fullmatch(name))}


def head_edges(model: ModelCircuit) -> list[HeadEdge]:
    """The circuit's edges between heads, the most important first."""
    edges = []
    for found, weight in _between_heads(model):
        layer, target = int(found[3]), int(found[5])
        groups = model.kv_heads[layer] if found[4] == "G" and model.kv_heads else grid_size(model)[1]
        group = grid_size(model)[1] // groups
        for head in range(target * group, target * group + group):
            edges.append(HeadEdge((int(found[1]), int(found[2])), (layer, head), found[6], weight))
    return edges


def _between_heads(model: ModelCircuit) -> list[tuple[re.Match[str], float]]:
    """Leaves out what begins or ends at the embedding, an MLP or the logits."""
    named = model.edges.ranking[: model.edges.needed] if model.edges else []
    return [(found, weight) for name, weight in named if (found := _EDGE.fullmatch(name))]


def grid_size(model: ModelCircuit) -> tuple[int, int]:
    """Layers and heads; 0 x 0 if no circuit was looked for."""
    effects = (model.head_effects or {}).get("lost", [])
    return len(effects), max(map(len, effects), default=0)


def draw_wiring(result: CircuitResult) -> Figure:
    """Layers upward, heads across; circuit heads are filled, lines are edges between heads. Dense beside twin."""
    title = f"{visible(result.task, 40)}: circuit heads and the edges between them"
    sizes = [grid_size(model) for model in result.models]
    layers = max((size[0] for size in sizes), default=0)
    height = 1.9 + min(5.0, max(1.0, 0.26 * layers))
    with picture(COLUMN, height, title, _caption(result)) as figure:
        row = figure.subplots(1, len(result.models), squeeze=False)[0]
        colours = model_colours([model.kind for model in result.models])
        for axes, model, colour in zip(row, result.models, colours, strict=True):
            axes.set_title(f"{model_name(model.model, 18)} ({model.kind})", color=colour, fontsize=7)
            if model.heads is None or not model.head_effects:
                axes.axis("off")
                axes.text(0.5, 0.5, "no circuit", ha="center", va="center", transform=axes.transAxes)
                continue
            _draw_grid(axes, model, colour)
    return figure


def _draw_grid(axes: Axes, model: ModelCircuit, colour: str) -> None:
    layers, width = grid_size(model)
    edges = head_edges(model)
    largest = max((abs(edge.weight) for edge in edges), default=1.0) or 1.0
    shares = [abs(edge.weight) / largest for edge in reversed(edges)]  # the strongest on top
    axes.add_collection(
        PathCollection(
            [_line(edge) for edge in reversed(edges)],
            facecolors="none",
            edgecolors=[
                to_rgba(TARGET if edge.weight < 0 else colour, round(0.15 + 0.75 * share, 2))
                for edge, share in zip(reversed(edges), shares, strict=True)
            ],
            linewidths=[round(0.3 + 1.7 * share, 2) for share in shares],
            zorder=1,
        ),
        autolim=False,
    )
    inside = circuit_heads(model)
    size = min(6.0, 75 / max(width, 1))  # points from head to head
    for filled in (False, True):
        places = [(h, l) for l in range(layers) for h in range(width) if ((l, h) in inside) == filled]
        if places:
            axes.plot(
                *zip(*places, strict=True), "o", ms=size if filled else 0.6 * size, mew=0.5,
                color=colour if filled else "white", mec=colour if filled else "#bbbbbb",
                zorder=3 if filled else 2,
            )  # fmt: skip
    axes.set_xlim(-0.6, width - 0.4)
    axes.set_ylim(-0.6, layers - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(9, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter("H{x:.0f}")
    axes.yaxis.set_major_formatter("L{x:.0f}")


def _line(edge: HeadEdge) -> Line:
    """Bent, so that it does not run through the heads between, and from rim to rim."""
    (low, start), (high, end) = edge.source, edge.target
    last = end + ENTRY[edge.kind]
    bend = 0.35 * (high - low)
    return Line(
        [(start, low + RIM), (start, low + bend), (last, high - bend), (last, high - RIM)],
        [Line.MOVETO, Line.CURVE4, Line.CURVE4, Line.CURVE4],
    )


def _caption(result: CircuitResult) -> str:
    """What a reader needs who finds the picture elsewhere."""
    parts = []
    for model in result.models:
        if model.heads is None:
            continue
        text = f"{model_name(model.model)}: filled {model.heads.needed} of {model.heads.total} heads"
        if model.edges is not None:
            needed, named = model.edges.needed, len(model.edges.ranking)
            saved = f", of which the first {named:,} were saved," if named < needed else ""
            text += f"; {len(_between_heads(model)):,} of its {needed:,} edges{saved} run between heads"
        parts.append(f"{text}.")
    if parts:
        parts.append(
            f"Each explains {result.threshold:.0%} of the {result.metric} on {prompts_used(result)}."
        )
    if any(head_edges(model) for model in result.models):
        parts.append(
            "Lines enter a head left as query, middle as key, right as value; width: attribution "
            f"({result.method}), against the model's largest."
        )
    if any(edge.weight < 0 for model in result.models for edge in head_edges(model)):
        parts.append("Orange: negative, against the answer.")
    parts += [f"{visible(warning, 300)}." for model in result.models for warning in model.warnings]
    return " ".join(parts)
