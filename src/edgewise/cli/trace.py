"""`edgewise trace`."""

from pathlib import Path

from edgewise.cli.arguments import Flags, ModelsArgument
from edgewise.tracing.config import TraceConfig


def trace(
    models: ModelsArgument, config: Flags[TraceConfig], transcoder: tuple[Path, ...] | None = None
) -> None:
    """Trace one prediction: the features it is attributed to, the heads that carry each edge, and their QK attribution.

    In --out: trace.json with its arrays, the diagram (svg, pdf, png), and in graphs/ the JSON that circuit-tracer's
    front end and Neuronpedia read.

    Examples:
      edgewise trace pocket pocket-sparse
      edgewise trace runs/gpt2-sparse --transcoder runs/transcoder --prompt "The capital of France is" --out runs/paris

    Args:
        models: One model, or two to compare (dense first): shipped names, folders or Hugging Face names.
        config: The trace.
        transcoder: The folder of each model's transcoder, in the same order. The shipped models bring theirs.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.core.console import Display
    from edgewise.plots.style import save_figure
    from edgewise.plots.trace_diagram import draw_trace
    from edgewise.tracing.console import print_traces
    from edgewise.tracing.save import save_traces

    display = Display()
    traces = save_traces(models, transcoder, config, display)
    save_figure(draw_trace(traces, config.key_place, config.share), config.out / "trace-diagram")
    print_traces(traces, config)
    display.print(
        f"trace.json is in {config.out}, drawn as trace-diagram (svg, pdf, png); graphs/ is for other viewers"
    )
