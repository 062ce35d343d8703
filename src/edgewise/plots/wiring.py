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
"""Where a line enters a head: horizontal distance from its center, for query, key and value."""
RADIUS = 0.2
"""Distance from a head's center at which lines begin and end."""
_EDGE = re.compile(r"L(\d+)H(\d+) -> L(\d+)([HG])(\d+)\.([qkv])")
_HEAD = re.compile(r"L(\d+)H(\d+)")


class HeadEdge(NamedTuple):
    """An edge between two heads; an edge to a shared key or value is one `HeadEdge` for each head that reads it."""

    source: tuple[int, int]
    """Layer and head."""
    target: tuple[int, int]
    kind: str
    """q, k or v"""
    weight: float


def circuit_heads(model: ModelCircuit) -> set[tuple[int, int]]:
    """Layer and head of each head of the circuit."""
    names = model.heads.best.components if model.heads else []
    return {(int(match[1]), int(match[2])) for name in names if (match := _HEAD.fullmatch(name))}


def head_edges(model: ModelCircuit) -> list[HeadEdge]:
    """The circuit's edges between heads, the most important first."""
    n_heads = grid_size(model)[1]
    edges = []
    for match, weight in _named_head_edges(model):
        layer, target = int(match[3]), int(match[5])
        n_groups = model.kv_heads[layer] if match[4] == "G" and model.kv_heads else n_heads
        group_size = n_heads // n_groups
        for head in range(target * group_size, target * group_size + group_size):
            edges.append(HeadEdge((int(match[1]), int(match[2])), (layer, head), match[6], weight))
    return edges


def _named_head_edges(model: ModelCircuit) -> list[tuple[re.Match[str], float]]:
    """Names and weights of edges between heads: not from the embedding, from or to an MLP, or to the logits."""
    if model.edges is None:
        return []
    circuit = {*model.edges.best.components}
    ranking = [(name, weight) for name, weight in model.edges.prefix.ranking if name in circuit]
    return [(match, weight) for name, weight in ranking if (match := _EDGE.fullmatch(name))]


def grid_size(model: ModelCircuit) -> tuple[int, int]:
    """Layers and heads of the model; 0 and 0 if it has no circuit."""
    effects = (model.head_effects or {}).get("lost", [])
    return len(effects), max(map(len, effects), default=0)


def draw_wiring(result: CircuitResult) -> Figure:
    """Draw layers upward and heads across, a dense model beside its twin; circuit heads are filled, lines are edges."""
    title = f"{visible(result.task, 40)}: circuit heads and the edges between them"
    n_layers = max((grid_size(model)[0] for model in result.models), default=0)
    height = 1.9 + min(5.0, max(1.0, 0.26 * n_layers))
    with picture(COLUMN, height, title, _caption(result)) as figure:
        panels = figure.subplots(1, len(result.models), squeeze=False)[0]
        colours = model_colours([model.kind for model in result.models])
        for axes, model, colour in zip(panels, result.models, colours, strict=True):
            axes.set_title(f"{model_name(model.model, 18)} ({model.kind})", color=colour, fontsize=7)
            if model.heads is None or not model.head_effects:
                axes.axis("off")
                axes.text(0.5, 0.5, "no circuit", ha="center", va="center", transform=axes.transAxes)
                continue
            _draw_edges(axes, head_edges(model), colour)
            _draw_heads(axes, model, colour)
    return figure


def _draw_edges(axes: Axes, edges: list[HeadEdge], colour: str) -> None:
    """Lines, as wide and as opaque as their weight, the strongest on top."""
    largest = max((abs(edge.weight) for edge in edges), default=1.0) or 1.0
    edges = edges[::-1]
    shares = [abs(edge.weight) / largest for edge in edges]
    axes.add_collection(
        PathCollection(
            [_line(edge) for edge in edges],
            facecolors="none",
            edgecolors=[
                to_rgba(TARGET if edge.weight < 0 else colour, round(0.15 + 0.75 * share, 2))
                for edge, share in zip(edges, shares, strict=True)
            ],
            linewidths=[round(0.3 + 1.7 * share, 2) for share in shares],
            zorder=1,
        ),
        autolim=False,
    )


def _draw_heads(axes: Axes, model: ModelCircuit, colour: str) -> None:
    """All heads, those of the circuit filled."""
    n_layers, n_heads = grid_size(model)
    circuit = circuit_heads(model)
    size = min(6.0, 75 / max(n_heads, 1))  # points
    heads = [(head, layer) for layer in range(n_layers) for head in range(n_heads)]
    for filled in (False, True):
        positions = [(head, layer) for head, layer in heads if ((layer, head) in circuit) == filled]
        if positions:
            axes.plot(
                *zip(*positions, strict=True), "o", ms=size if filled else 0.6 * size, mew=0.5,
                color=colour if filled else "white", mec=colour if filled else "#bbbbbb",
                zorder=3 if filled else 2,
            )  # fmt: skip
    axes.set_xlim(-0.6, n_heads - 0.4)
    axes.set_ylim(-0.6, n_layers - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(9, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter("H{x:.0f}")
    axes.yaxis.set_major_formatter("L{x:.0f}")


def _line(edge: HeadEdge) -> Line:
    """A curve between the rims of two heads, bent so that it avoids the heads between them."""
    (low, start), (high, end) = edge.source, edge.target
    entry = end + ENTRY[edge.kind]
    bend = 0.35 * (high - low)
    return Line(
        [(start, low + RADIUS), (start, low + bend), (entry, high - bend), (entry, high - RADIUS)],
        [Line.MOVETO, Line.CURVE4, Line.CURVE4, Line.CURVE4],
    )


def _caption(result: CircuitResult) -> str:
    """What a reader needs to know who sees the figure alone."""
    sentences = [_description(model) for model in result.models if model.heads]
    if sentences:
        sentences.append(
            f"Each explains {result.threshold:.0%} of the {result.metric} on {prompts_used(result)}."
        )
    edges = [edge for model in result.models for edge in head_edges(model)]
    if edges:
        sentences.append(
            "Lines enter a head left as query, middle as key, right as value; width: attribution "
            f"({result.method}), against the model's largest."
        )
    if any(edge.weight < 0 for edge in edges):
        sentences.append("Orange: negative, against the answer.")
    sentences += [f"{visible(warning, 300)}." for warning in result.warnings]
    return " ".join(sentences)


def _description(model: ModelCircuit) -> str:
    """The size of a model's circuit, in a sentence."""
    assert model.heads is not None
    text = f"{model_name(model.model)}: filled {model.heads.best.size} of {model.heads.total} heads"
    if model.edges is not None:
        needed, n_named = model.edges.best.size, len(model.edges.best.components)
        saved = f", of which the first {n_named:,} were saved," if n_named < needed else ""
        text += f"; {len(_named_head_edges(model)):,} of its {needed:,} edges{saved} run between heads"
    return f"{text}."
