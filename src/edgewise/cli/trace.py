"""`edgewise trace`."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from edgewise.cli.arguments import PLACEMENT, Flags, ModelsArgument, PlacementFlags
from edgewise.tracing.config import TraceConfig


def trace(
    models: ModelsArgument,
    config: Flags[TraceConfig],
    transcoders: Annotated[tuple[Path, ...] | None, tyro.conf.arg(metavar="PATH [PATH]")] = None,
    caption: bool = False,
    query_axis: Literal["down", "up"] = "down",
    placement: PlacementFlags = PLACEMENT,
) -> None:
    """Trace one prediction: the features it is attributed to, the heads that carry each link, and their QK attribution.

    In --out: trace.json with its arrays, the diagram and the effects of ablations (svg, pdf, png), and in graphs/ the
    JSON that circuit-tracer's front end and Neuronpedia read.

    Examples:
      edgewise trace pocket pocket-sparse
      edgewise trace runs/gpt2-sparse --transcoders runs/transcoder --prompt "The capital of France is" --out runs/paris

    Args:
        models: One model, or two to compare (dense first): embedded models, folders or Hugging Face names.
        config: The trace.
        transcoders: The folder of each model's transcoder, in the same order. The embedded models bring theirs.
        caption: Draw captions into the figures.
        query_axis: Direction in which the queries of a map run: down, or up.
        placement: Where models run, and in which precision.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.tables.trace import print_traces
    from edgewise.core.console import Display
    from edgewise.core.files import output_folder
    from edgewise.models.loaded import load_models
    from edgewise.plots.style import save_figure
    from edgewise.plots.trace_effects import draw_effects
    from edgewise.tracing.trace import trace as trace_models

    with output_folder(config.out):
        display = Display()
        traces = trace_models(
            load_models(models, device=placement.device, dtype=placement.dtype, display=display),
            config,
            transcoders=transcoders,
        )
        traces.save_or_print(config.out, display)
        save_figure(
            traces.plot(key=config.key_position, share=config.share, query_axis=query_axis, caption=caption),
            config.out / traces.figure_name,
        )
        save_figure(draw_effects(traces, caption=caption), config.out / "trace-effects")
        print_traces(traces, config)
        display.print(
            f"{config.out}: trace.json, trace-diagram and trace-effects (svg, pdf, png), graphs/ for other viewers\n"
            f"to explore it: edgewise report {config.out}"
        )
