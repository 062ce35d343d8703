"""Circuit wiring: embedding, heads, MLPs and logits of a circuit, and the edges between them, as in the report.

Layers go up, heads across, each layer's MLP is at its right. Discs with a number are the heads of the circuit; small ones
are heads that only its edges join. Lines are the strongest edges of the circuit, as wide as their attribution.
"""

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, Unpack

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.path import Path as Line

from edgewise.circuits.result import CircuitResult, ModelCircuit
from edgewise.core.text import visible
from edgewise.plots.curves import prompts_used
from edgewise.plots.look import LookArguments, check_look
from edgewise.plots.style import COLUMN, PAGE, TARGET, model_colours, model_name, picture, shown

MAX_LINES = 60
"""The strongest edges of a circuit that are drawn, as in the report."""
_HEAD = re.compile(r"L(\d+)([HG])(\d+)(?:\.([qkv]))?")
_MLP = re.compile(r"MLP (\d+)")


class Place(NamedTuple):
    """A component in the picture."""

    name: str
    x: float
    y: float


class DrawnEdge(NamedTuple):
    """A line from one component to another."""

    source: Place
    target: Place
    weight: float


def circuit_heads(model: ModelCircuit) -> set[tuple[int, int]]:
    """Layer and head of each head of the circuit."""
    names = model.heads.best.components if model.heads else []
    return {(int(match[1]), int(match[3])) for name in names if (match := _HEAD.fullmatch(name))}


def grid_size(model: ModelCircuit) -> tuple[int, int]:
    """Layers and heads of the model; 0 and 0 if it has no circuit."""
    effects = (model.head_effects or {}).get("lost", [])
    return len(effects), max(map(len, effects), default=0)


def circuit_edges(model: ModelCircuit) -> list[DrawnEdge]:
    """The circuit's edges, the most important first."""
    if model.edges is None:
        return []
    circuit = {*model.edges.best.components}
    edges = []
    for name, weight in model.edges.prefix.ranking:
        source, _, target = name.partition(" -> ")
        begin, end = _place(model, source), _place(model, target)
        if name in circuit and begin and end:
            edges.append(DrawnEdge(begin, end, weight))
    return edges


def _place(model: ModelCircuit, name: str) -> Place | None:
    """Where a component is; the heads that share a key or value are entered in their middle."""
    n_layers, n_heads = grid_size(model)
    if name in ("embedding", "logits"):
        return Place(name, (n_heads - 1) / 2, -1.0 if name == "embedding" else n_layers)
    if match := _MLP.fullmatch(name):
        return Place(name, n_heads + 0.3, int(match[1]) + 0.35)
    match = _HEAD.fullmatch(name)
    if not match:
        return None
    layer, number = int(match[1]), int(match[3])
    if match[2] == "G":
        size = n_heads // (model.kv_heads[layer] if model.kv_heads else n_heads)
        return Place(name.split(".")[0], number * size + (size - 1) / 2, layer)
    return Place(f"L{layer}H{number}", number, layer)


def draw_wiring(result: CircuitResult, **look: Unpack[LookArguments]) -> Figure:
    """Draw each model's circuit with its strongest edges, a dense model beside its twin."""
    checked = check_look(look, len(result.models), unused=["cmap"])
    title = f"{visible(result.task, 40)}: the circuit and its strongest edges"
    n_layers, n_heads = (max(sizes, default=0) for sizes in zip(*map(grid_size, result.models), strict=True))
    width = COLUMN if len(result.models) * n_heads <= 8 else PAGE
    height = 0.9 + min(7.0, max(1.2, 0.34 * (n_layers + 2)))
    colours = checked.coloured(model_colours([model.kind for model in result.models]))
    names = checked.named([f"{model_name(model.model, 18)} ({model.kind})" for model in result.models])
    with picture(checked, (width, height), title, _caption(result)) as figure:
        panels = figure.subplots(1, len(result.models), squeeze=False)[0]
        for axes, model, name, colour in zip(panels, result.models, names, colours, strict=True):
            axes.set_title(_panel_title(model, name), color=colour, fontsize=7)
            axes.axis("off")
            if model.heads is None or not model.head_effects:
                axes.text(0.5, 0.5, "no circuit", ha="center", va="center", transform=axes.transAxes)
                continue
            edges = circuit_edges(model)[:MAX_LINES]
            _draw_edges(axes, edges, colour)
            _draw_components(axes, model, {end.name for edge in edges for end in edge[:2]}, colour)
    return shown(figure)


def _panel_title(model: ModelCircuit, name: str) -> str:
    if model.heads is None:
        return name
    text = f"{name}\n{model.heads.best.size} of {model.heads.total} heads"
    return text if model.edges is None else f"{text}, {model.edges.best.size:,} edges"


def _draw_edges(axes: Axes, edges: Sequence[DrawnEdge], colour: str) -> None:
    """Lines, as wide and as opaque as their weight, the strongest on top."""
    largest = max((abs(edge.weight) for edge in edges), default=1.0) or 1.0
    edges = edges[::-1]
    shares = [(abs(edge.weight) / largest) ** 0.5 for edge in edges]
    axes.add_collection(
        PathCollection(
            [_line(edge) for edge in edges],
            facecolors="none",
            edgecolors=[
                to_rgba(TARGET if edge.weight < 0 else colour, round(0.2 + 0.6 * share, 2))
                for edge, share in zip(edges, shares, strict=True)
            ],
            linewidths=[round(0.3 + 2.2 * share, 2) for share in shares],
            zorder=1,
        ),
        autolim=False,
    )


def _line(edge: DrawnEdge) -> Line:
    (_, x, low), (_, end, high) = edge.source, edge.target
    middle = (low + high) / 2
    codes = [Line.MOVETO, Line.CURVE4, Line.CURVE4, Line.CURVE4]
    return Line([(x, low), (x, middle), (end, middle), (end, high)], codes)


def _draw_components(axes: Axes, model: ModelCircuit, joined: set[str], colour: str) -> None:
    """The heads, with the number of those of the circuit; the embedding, the MLPs and the logits, if edges were searched."""
    n_layers, n_heads = grid_size(model)
    has_edges = model.edges is not None
    for layer in range(n_layers):
        axes.text(-0.9, layer, f"L{layer}", ha="right", va="center", fontsize=6, color="#444444")
    _draw_heads(axes, model, joined, colour)
    if has_edges:
        _draw_labels(axes, model, joined)
    axes.set_xlim(-1.6, n_heads + (1.3 if has_edges else -0.3))
    axes.set_ylim(-1.4 if has_edges else -0.6, n_layers + (0.4 if has_edges else -0.4))


def _draw_heads(axes: Axes, model: ModelCircuit, joined: set[str], colour: str) -> None:
    """Discs: large with a number in the circuit, small if only an edge joins them, white otherwise."""
    n_layers, n_heads = grid_size(model)
    circuit = circuit_heads(model)
    size = min(11.0, 130 / max(n_heads, 1))  # points
    points: dict[str, list[tuple[int, int]]] = {"circuit": [], "joined": [], "other": []}
    for layer, head in product(range(n_layers), range(n_heads)):
        is_joined = f"L{layer}H{head}" in joined
        kind = "circuit" if (layer, head) in circuit else "joined" if is_joined else "other"
        points[kind].append((head, layer))
    styles = {
        "circuit": {"ms": size, "color": colour, "mec": colour, "zorder": 3},
        "joined": {"ms": 0.5 * size, "color": colour, "mec": colour, "zorder": 3},
        "other": {"ms": 0.5 * size, "color": "white", "mec": "#cccccc", "zorder": 2},
    }
    for kind, style in styles.items():
        if points[kind]:
            axes.plot(*zip(*points[kind], strict=True), "o", mew=0.6, **style)
    for head, layer in points["circuit"] if size >= 7 else []:
        axes.text(
            head, layer, f"{head}", fontsize=0.55 * size, ha="center", va="center", color="white", zorder=4
        )


def _draw_labels(axes: Axes, model: ModelCircuit, joined: set[str]) -> None:
    """The embedding, the MLPs and the logits in boxes, darker where an edge joins them."""
    names = ["embedding", "logits", *(f"MLP {layer}" for layer in range(grid_size(model)[0]))]
    for label in (_place(model, name) for name in names):
        assert label is not None
        is_joined = label.name in joined
        axes.text(
            label.x, label.y, label.name, ha="center", va="center", fontsize=6, zorder=3,
            color="#222222" if is_joined else "#999999",
            bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "linewidth": 0.6,
                  "edgecolor": "#888888" if is_joined else "#dddddd"},
        )  # fmt: skip


def _caption(result: CircuitResult) -> str:
    """What a reader needs to know who sees the figure alone."""
    sentences = [_description(model) for model in result.models if model.heads]
    if sentences:
        sentences.append(
            f"Each explains {result.threshold:.0%} of the {result.metric} on {prompts_used(result)}."
        )
    edges = [edge for model in result.models for edge in circuit_edges(model)]
    if edges:
        sentences.append(
            f"Lines: the strongest edges, at most {MAX_LINES}; width: attribution ({result.method}), against the model's "
            "largest. Small discs: heads that only edges join."
        )
    if any(edge.weight < 0 for edge in edges):
        sentences.append("Orange: negative, against the answer.")
    sentences += [f"{visible(warning, 300)}." for warning in result.warnings]
    return " ".join(sentences)


def _description(model: ModelCircuit) -> str:
    """The size of a model's circuit, in a sentence."""
    assert model.heads is not None
    text = f"{model_name(model.model)}: {model.heads.best.size} of {model.heads.total} heads"
    if model.edges is not None:
        needed, n_named = model.edges.best.size, len(model.edges.best.components)
        saved = f", of which the first {n_named:,} were saved" if n_named < needed else ""
        text += f", {needed:,} edges{saved}"
    return f"{text}."
