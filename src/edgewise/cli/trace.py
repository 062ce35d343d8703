"""`edgewise trace`."""

from pathlib import Path

from edgewise.cli.arguments import Flags, ModelsArgument
from edgewise.tracing.config import TraceConfig


def trace(
    models: ModelsArgument, config: Flags[TraceConfig], transcoders: tuple[Path, ...] | None = None
) -> None:
    """Trace one prediction: the features it is attributed to, the heads that carry each link, and their QK attribution.

    In --out: trace.json with its arrays, the diagram (svg, pdf, png), and in graphs/ the JSON that circuit-tracer's
    front end and Neuronpedia read.

    Examples:
      edgewise trace pocket pocket-sparse
      edgewise trace runs/gpt2-sparse --transcoders runs/transcoder --prompt "The capital of France is" --out runs/paris

    Args:
        models: One model, or two to compare (dense first): shipped names, folders or Hugging Face names.
        config: The trace.
        transcoders: The folder of each model's transcoder, in the same order. The shipped models bring theirs.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.tables.trace import print_traces
    from edgewise.core.console import Display
    from edgewise.models.loaded import load_models
    from edgewise.plots.style import save_figure
    from edgewise.tracing.trace import trace as trace_models

    display = Display()
    traces = trace_models(load_models(models, display=display), config, transcoders=transcoders)
    traces.save(config.out)
    save_figure(traces.plot(key=config.key_position, share=config.share), config.out / traces.figure_name)
    print_traces(traces, config)
    display.print(
        f"trace.json is in {config.out}, drawn as trace-diagram (svg, pdf, png); graphs/ is for other viewers"
    )
