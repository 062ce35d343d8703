"""What a run of sparsification prints: the plan, the numbers of a step, the result."""

from typing import Any

from edgewise.core.console import Display
from edgewise.measure.forward import evaluation_bytes
from edgewise.measure.loss import Measured
from edgewise.training.budget import Costs
from edgewise.training.console import describe_time, print_table, projected_memory
from edgewise.training.sparsify.metrics import StepMetrics
from edgewise.training.sparsify.result import SparsifyResult
from edgewise.training.sparsify.run import SparsifyRun


def print_plan(display: Display, run: SparsifyRun, name: str, dense: Measured, costs: Costs) -> None:
    """Before the first step: what will be done."""
    config, state = run.config, run.state
    steps, tokens = state.planned_steps - state.step, state.tokens_per_step
    trained = sum(p.numel() for p in run.twin.model.parameters() if p.requires_grad)
    null_value = ", null value" if run.twin.gate.null_value else ""
    averaged = 0 if run.twin.average is None else 4  # bytes for each weight
    memory = projected_memory(
        run.twin.model, run.accelerator.device, averaged, evaluation_bytes(run.dense, run.data.held_out)
    )
    until = f", or until density {config.density:.2%}" if config.density is not None else ""
    kl = f" and KL from the dense model <= {config.loss_tolerance:g}" if run.recipe.kl_constraint else ""
    lines = {
        "model": f"{name}: {trained / 1e6:.2f}M trained parameters"
        + (f" (LoRA, rank {config.lora})" if config.lora else "")
        + (" (only attention)" if config.attention_only else ""),
        "recipe": f"{run.recipe.name}, gate {run.twin.gate.kind} from b = {run.twin.gate.b:g}{null_value}, "
        f"learning rate {run.learning_rates[0]:g}",
        "text": f"{run.data.train.name}, sequences of {run.data.train.context} tokens",
        "work": f"{steps:,} steps x {tokens:,} tokens = {steps * tokens / 1e6:.2f}M tokens{until}",
        "time": describe_time(state, costs),
        "memory": f"about {memory / 2**30:.1f} GB",
        "keep": f"held-out loss <= {dense.ce:.4f} + {config.loss_tolerance:g} nats{kl} ({dense.tokens:,} tokens)",
        "results": str(config.out),
    }
    if costs.warmup_steps:
        pace = costs.warmup_steps * tokens / costs.warmup
        lines["work"] += f", {costs.warmup_steps:,} of them layer-wise warm-up ({pace:,.0f} tokens/s)"
    print_table(display, lines)


def describe_step(run: SparsifyRun, metrics: StepMetrics, validation: dict[str, Any]) -> str:
    """A step's numbers in the progress line: density as last validated."""
    multiplier, tolerance = run.state.multiplier, run.config.loss_tolerance
    density = f"{metrics.density:.2%}"
    if validation:
        density = f"{validation['density']:.2%} ({validation['edges_per_query']:.2f} edges a query)"
    loss = f"loss {metrics.dense_ce:.3f} {multiplier.loss.expected:+.4f}"
    if run.recipe.kl_constraint:
        loss += f", KL {multiplier.kl.expected:.4f}"
    if run.is_layerwise:
        loss = f"layer-wise warm-up, about {multiplier.loss.average or 0:+.4f}"
    return f"{loss} (tolerance {tolerance:+g}) · density {density} · multiplier {multiplier.beta:.2g}"


def print_result(display: Display, result: SparsifyResult) -> None:
    summary, out = result.summary, result.folder
    display.print(
        f"{summary['stopped']}: {summary['density']:.2%} of edges ({summary['edges_per_query']:.2f} a query and head, "
        f"{summary['heads_closed']} of {summary['heads']} heads closed); held-out loss {summary['sparse_ce']:.4f}, "
        f"{summary['delta_ce']:+.4f} against the dense model, KL {summary['kl']:.4f} "
        f"(tolerance {summary['tolerance']:g}): {'kept' if summary['kept'] else 'NOT kept'}"
    )
    for warning in summary["warnings"]:
        display.print(f"warning: {warning}")
    if not summary["kept"]:
        display.print(
            f"To get it back within the tolerance, resume the run in {out} with more minutes or tokens"
        )
    display.print(f"The twin, summary.json, log.jsonl and run.png are in {out}")
    print(out)
