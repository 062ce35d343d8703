"""All pictures of a circuit, into the folder of its circuit.json."""

from pathlib import Path

from edgewise.circuits.result import CircuitResult
from edgewise.plots.curves import draw_curves
from edgewise.plots.style import save_figure
from edgewise.plots.wiring import draw_wiring


def save_circuit_figures(result: CircuitResult, folder: str | Path) -> list[Path]:
    """Write circuit-curves and circuit-wiring, each as SVG, PDF and PNG."""
    curves = save_figure(draw_curves(result), Path(folder) / "circuit-curves")
    return curves + save_figure(draw_wiring(result), Path(folder) / "circuit-wiring")
