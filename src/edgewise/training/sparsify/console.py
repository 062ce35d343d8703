"""What a run of sparsification prints: the plan, the numbers of a step, the result."""

from typing import Any

from edgewise.core.console import Display
from edgewise.measure.evaluation import Measured, bytes_of_measuring
from edgewise.training.budget import StepTimes
from edgewise.training.console import duration, print_table, projected_memory
from edgewise.training.sparsify.result import SparsifyResult
from edgewise.training.sparsify.run import SparsifyRun, StepMetrics


def print_plan(display: Display, run: SparsifyRun, name: str, dense: Measured, times: StepTimes) -> None:
    """Before the first step: what will be done."""
    config, state = run.config, run.state
    steps, tokens = state.planned_steps - state.step, state.tokens_per_step
    trained = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    null_value = ", null value" if run.gate.null_value else ""
    averaged = 0 if run.average is None else 4  # bytes for each weight
    memory = projected_memory(
        run.model, run.accelerator.device, averaged, bytes_of_measuring(run.dense, run.data.held_out)
    )
    until = f", or until density {config.density:.2%}" if config.density is not None else ""
    seconds = (steps - times.warmup_steps) * times.seconds + times.warmup_seconds
    lines = {
        "model": f"{name}: {trained / 1e6:.2f}M trained parameters"
        + (f" (LoRA, rank {config.lora})" if config.lora else "")
        + (" (only attention)" if config.attention_only else ""),
        "recipe": f"{run.recipe.name}, gate {run.gate.kind} from b = {run.gate.b:g}{null_value}, "
        f"learning rate {run.learning_rates[0]:g}",
        "text": f"{run.data.train.name}, sequences of {run.data.train.context} tokens",
        "work": f"{steps:,} steps x {tokens:,} tokens = {steps * tokens / 1e6:.2f}M tokens{until}",
        "time": f"about {duration(seconds)} ({tokens / times.seconds:,.0f} tokens/s measured)",
        "memory": f"about {memory / 2**30:.1f} GB",
        "keep": f"held-out loss <= {dense.ce:.4f} + {config.loss_tolerance:g} nats ({dense.tokens:,} tokens)",
        "results": str(config.out),
    }
    if times.warmup_steps:
        pace = times.warmup_steps * tokens / times.warmup_seconds
        lines["work"] += f", {times.warmup_steps:,} of them layer-wise warm-up ({pace:,.0f} tokens/s)"
    print_table(display, lines)


def describe_step(run: SparsifyRun, metrics: StepMetrics, validation: dict[str, Any]) -> str:
    """A step's numbers in the progress line: density as last validated."""
    multiplier, tolerance = run.state.multiplier, run.config.loss_tolerance
    density = f"{metrics.density:.2%}"
    if validation:
        density = f"{validation['density']:.2%} ({validation['edges_per_query']:.2f} edges a query)"
    loss = f"loss {metrics.dense_ce:.3f} {multiplier.expected:+.4f}"
    if run.is_layerwise:
        loss = f"layer-wise warm-up, about {multiplier.gap or 0:+.4f}"
    return f"{loss} (tolerance {tolerance:+g}) · density {density} · multiplier {multiplier.beta:.2g}"


def print_result(display: Display, result: SparsifyResult) -> None:
    summary, out = result.summary, result.folder
    is_kept = summary["delta_ce"] <= summary["tolerance"]
    display.print(
        f"{summary['stopped']}: {summary['density']:.2%} of edges ({summary['edges_per_query']:.2f} a query and head, "
        f"{summary['heads_closed']} of {summary['heads']} heads closed); held-out loss {summary['sparse_ce']:.4f}, "
        f"{summary['delta_ce']:+.4f} against the dense model: {'kept' if is_kept else 'NOT kept'}"
    )
    if not is_kept:
        display.print(f"To get the loss back, resume the run in {out} with more minutes or tokens")
    display.print(f"The twin, summary.json, log.jsonl and run.png are in {out}")
    print(out)
