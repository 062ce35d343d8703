"""`edgewise circuit`."""

from edgewise.circuits.config import CircuitConfig
from edgewise.cli.arguments import Flags, ModelsArgument


def circuit(models: ModelsArgument, config: Flags[CircuitConfig]) -> None:
    """Find the heads and edges that carry a task's effect, in a model or in a dense model and its twin.

    Heads are patched exactly, one by one; edges are ranked by attribution (EAP-IG), and their faithfulness curve is measured
    by patching. With --out, curves and rankings go to circuit.json, with figures of them.

    Examples:
      edgewise circuit pocket pocket-sparse --task copy --out runs/copy
      edgewise circuit gpt2 --task ioi --no-edges
      edgewise circuit gpt2 runs/gpt2-sparse --task my_task.jsonl --prompts 64

    Args:
        models: One model, or two to compare (dense first): shipped names, folders or Hugging Face names.
        config: The search.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.circuits.find import find_circuits
    from edgewise.cli.tables.circuit import print_circuits
    from edgewise.core.console import Display
    from edgewise.models.loaded import load_models
    from edgewise.plots.circuit import save_circuit_figures

    display = Display()
    result = find_circuits(load_models(models, display=display), config)
    print_circuits(result)
    if config.out is not None:
        save_circuit_figures(result, config.out)
        display.print(
            f"circuit.json is in {config.out}, drawn as circuit-curves and circuit-wiring (svg, pdf, png)"
        )
