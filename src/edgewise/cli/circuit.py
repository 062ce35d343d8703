"""`edgewise circuit`."""

from pathlib import Path

from edgewise.circuits.config import CircuitConfig
from edgewise.cli.arguments import PLACEMENT, Flags, ModelsArgument, PlacementFlags
from edgewise.core.errors import EdgewiseError

DEFAULTS = CircuitConfig(out=Path("runs/circuit"))


def circuit(
    models: ModelsArgument,
    config: Flags[CircuitConfig] = DEFAULTS,
    caption: bool = False,
    placement: PlacementFlags = PLACEMENT,
) -> None:
    """Find the heads and edges that carry a task's effect, in a model or in a dense model and its twin.

    Two counts of each: the smallest prefix of a ranking (heads patched exactly one by one, edges by EAP-IG), which papers
    report, and a minimal circuit, found by a joint search with exact evaluation, none of whose components can go. Minimal
    circuits are reported on prompts that nothing was chosen by, with controls.

    Leaves circuit.json and figures in --out. Ctrl-C keeps what was found so far.

    Examples:
      edgewise circuit pocket pocket-sparse --task copy --out runs/copy
      edgewise circuit gpt2 --task ioi --no-edges
      edgewise circuit gpt2 runs/gpt2-sparse --task my_task.jsonl --prompts 64

    Args:
        models: One model, or two to compare (dense first): embedded models, folders or Hugging Face names.
        config: The search.
        caption: Draw captions below the figures that explain them.
        placement: Where models run, and in which precision.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.circuits.find import find_circuits
    from edgewise.circuits.find_minimal import Interrupted
    from edgewise.cli.tables.circuit import print_circuits
    from edgewise.core.console import Display
    from edgewise.core.files import output_folder
    from edgewise.models.loaded import load_models
    from edgewise.plots.circuit import save_circuit_figures

    if config.out is None:
        raise EdgewiseError("give a folder as `out`")
    with output_folder(config.out):
        display = Display()
        try:
            result = find_circuits(
                load_models(models, device=placement.device, dtype=placement.dtype, display=display), config
            )
        except Interrupted as interrupt:
            print_circuits(interrupt.partial)
            path = f"{config.out}/circuit.json"
            raise KeyboardInterrupt(f"interrupted; what was found is in {path}") from interrupt
        print_circuits(result)
        drawn = any(model.heads for model in result.models)
        if drawn:
            save_circuit_figures(result, config.out, caption)
        figures = ", drawn as circuit-curves and circuit-wiring (svg, pdf, png)" if drawn else ""
        display.print(f"circuit.json is in {config.out}{figures}")
