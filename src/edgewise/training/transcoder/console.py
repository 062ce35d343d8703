"""Console output of a transcoder's training: the plan, a step's metrics, the evaluation."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgewise.core.console import Display
from edgewise.training.budget import Costs
from edgewise.training.console import describe_time, print_table, projected_memory
from edgewise.training.transcoder.evaluation import TranscoderEvaluation
from edgewise.training.transcoder.run import TranscoderMetrics, TranscoderRun


def print_plan(display: Display, run: TranscoderRun, costs: Costs) -> None:
    """Print the plan of the run, before the first step."""
    info, config, state = run.transcoder.config, run.config, run.state
    steps, tokens = state.planned_steps - state.step, state.tokens_per_step
    parameters = sum(p.numel() for p in run.model.parameters())
    kind = "a sparse twin" if info.gated else "a dense model"
    memory = projected_memory(run.model, run.accelerator.device)
    lines = {
        "model": f"{info.model or 'the given model'}, {kind}: {info.layers} layers of width {info.width}",
        "features": f"{info.features:,} per layer, {parameters / 1e6:.2f}M trained parameters"
        + (f", initialised from {config.start_from}" if config.start_from else ""),
        "recipe": f"l0 {config.l0:g}, learning rate {run.learning_rates[0]:g}",
        "text": f"{run.data.train.name}, sequences of {run.data.train.context} tokens",
        "work": f"{steps:,} steps x {tokens:,} tokens = {steps * tokens / 1e6:.2f}M tokens",
        "time": describe_time(state, costs),
        "memory": f"about {memory / 2**30:.1f} GB",
        "results": str(config.out),
    }
    print_table(display, lines)


def describe_step(metrics: TranscoderMetrics, validation: dict[str, Any]) -> str:
    """A step's metrics in the progress line."""
    layers = len(metrics.mse)
    return (
        f"explained {1 - sum(metrics.mse) / layers:.3f} (worst layer {1 - max(metrics.mse):.3f}) · "
        f"{sum(metrics.l0) / layers:.1f} features per token and layer"
    )


def print_result(display: Display, measured: TranscoderEvaluation, stopped: str, out: Path) -> None:
    print_transcoder(measured, display.console)
    display.print(
        f"{stopped}: {measured.mean_explained_variance:.2%} of variance explained by {measured.mean_l0:.1f} features "
        f"per token and layer; with all MLPs replaced the loss is {measured.replaced_loss:.4f}, "
        f"{measured.difference:+.4f}"
    )
    if measured.massive:
        display.print(
            f"excluded: {measured.massive:.2%} of MLP outputs, massive activations as at the first token of a text; "
            "in a trace they are error nodes"
        )
    display.print(f"transcoder.safetensors, config.json, summary.json and log.jsonl are in {out}")
    print(out)


def print_transcoder(measured: TranscoderEvaluation, console: Console | None = None) -> None:
    """A table, one layer to a row."""
    table = Table("layer", "explained variance", "active features", "dead")
    rows = zip(measured.explained_variance, measured.l0, measured.dead, strict=True)
    for layer, (explained, l0, dead) in enumerate(rows):
        table.add_row(f"L{layer}", f"{explained:.2%}", f"{l0:.1f}", f"{dead:.1%}")
    (console or Console()).print(table)
