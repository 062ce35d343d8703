"""Circuits and flows made by hand, and what can be read in their figures."""

import random
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure

from edgewise.circuits.minimal import Explained
from edgewise.circuits.result import CircuitResult, ComponentCircuit, Curve, ModelCircuit, PrefixCircuit
from edgewise.flow.result import Edge, Flow
from edgewise.plots.style import save_figure

# ------------------------------------------------------------------------------------------------------ made by hand


def component_circuit(
    total: int, needed: int, names: list[str], prompts: int = 5, spread: bool = True
) -> ComponentCircuit:
    counts = sorted({0, 1, needed // 2, needed - 1, needed, min(total, 2 * needed), total} - {-1})
    explained = [min(1.0, 0.91 * count / max(needed, 1)) for count in counts]
    lower, upper = ([x - 0.05 for x in explained], [x + 0.05 for x in explained]) if spread else ([], [])
    weights = [(-1) ** (i % 3 == 2) * 2.0 / (i + 1) for i in range(len(names))]
    prefix = PrefixCircuit(
        needed=needed,
        explained=Explained(explained[counts.index(needed)]),
        needed_per_prompt=[min(total, needed + i) for i in range(prompts)],
        curve=Curve(counts, explained, lower, upper),
        ranking=list(zip(names, weights, strict=True)),
    )
    return ComponentCircuit(total, prefix)


def circuit(
    name: str, kind: str, heads: int, edges: int, layers: int = 3, width: int = 4, kv_heads: int | None = None
) -> ModelCircuit:
    """Its ranking begins with three edges between heads and three others."""
    names = [f"L{layer}H{head}" for layer in range(layers) for head in range(width)]
    shared = "H" if kv_heads is None else "G"
    joined = [f"L0H1 -> L1{shared}1.k", "embedding -> L0H0.q", "L0H0 -> L1H2.q"]
    joined += ["MLP 0 -> logits", f"L1H2 -> L2{shared}0.v", "L2H1 -> MLP 2"]
    return ModelCircuit(
        model=name,
        kind=kind,
        accuracy=1.0,
        clean_score=3.0,
        corrupt_score=-3.0,
        prompts=6,
        left_out=1,
        heads=component_circuit(layers * width, heads, names),
        head_effects={key: [[0.1] * width for _ in range(layers)] for key in ("lost", "restored")},
        edges=component_circuit(400, edges, joined),
        kv_heads=[kv_heads or width] * layers,
        head_head_edges=(3, 48),
    )


def no_circuit(name: str = "tiny", kind: str = "dense") -> ModelCircuit:
    return ModelCircuit(name, kind, 0.5, 0.1, 0.0, 6, 6, warnings=[f"{name} does not show ioi: too small"])


def result_of(*models: ModelCircuit, task: str = "ioi") -> CircuitResult:
    return CircuitResult(task, "logit difference", 0.9, 0, "EAP-IG, 5 steps", [], [*models])


def both() -> CircuitResult:
    return result_of(circuit("big", "dense", 9, 90), circuit("small", "sparse", 2, 20))


def flow_of(
    tokens: list[str], kind: str = "dense", layers: int = 2, heads: int = 3, prompt: str = ""
) -> Flow:
    generator = random.Random(len(tokens))
    edges = [
        Edge(layer, head, query, key, round(generator.random() ** (6 if kind == "dense" else 1), 6))
        for layer in range(layers)
        for head in range(heads)
        for query in range(len(tokens))
        for key in range(query + 1)
    ]
    answers = [""] * (len(tokens) - 1) + [tokens[0]]
    return Flow(f"a {kind} one", kind, prompt or " ".join(tokens), tokens, answers, layers, heads, edges)


# ----------------------------------------------------------------------------------------------------- what is on it


def svg(figure: Figure, folder: Path) -> str:
    return save_figure(figure, folder / "figure", ["svg"])[0].read_text()


def texts(figure: Figure, folder: Path) -> list[str]:
    """What a reader of the SVG can select, line by line."""
    root = ET.fromstring(svg(figure, folder))
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def whole_text(figure: Figure, folder: Path) -> str:
    return " ".join(texts(figure, folder))


def axes_of(figure: Figure) -> list[Any]:
    return [*figure.axes]


def lines_of(figure: Figure) -> list[int]:
    """How many lines each panel's collection holds."""
    kinds = (LineCollection, PathCollection)
    return [len(c.get_paths()) for axes in axes_of(figure) for c in axes.collections if isinstance(c, kinds)]


def panels(figure: Figure) -> dict[str, Any]:
    return {axes.get_title(): axes for axes in axes_of(figure) if axes.get_title()}
