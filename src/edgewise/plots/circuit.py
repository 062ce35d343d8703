"""The figures of a circuit: its curves, and its wiring."""

from pathlib import Path
from typing import Unpack

from matplotlib.figure import Figure

from edgewise.circuits.result import CircuitResult
from edgewise.plots.curves import draw_curves
from edgewise.plots.look import LookArguments
from edgewise.plots.style import save_figure
from edgewise.plots.wiring import draw_wiring


def draw_circuit(result: CircuitResult, wiring: bool = False, **look: Unpack[LookArguments]) -> Figure:
    """Draw the curves of a circuit, or with `wiring` its components and the edges between them."""
    return draw_wiring(result, **look) if wiring else draw_curves(result, **look)


def save_circuit_figures(result: CircuitResult, folder: str | Path, caption: bool = False) -> list[Path]:
    """Write circuit-curves and circuit-wiring, each as SVG, PDF and PNG."""
    curves = save_figure(draw_curves(result, caption=caption), Path(folder) / "circuit-curves")
    return curves + save_figure(draw_wiring(result, caption=caption), Path(folder) / "circuit-wiring")
