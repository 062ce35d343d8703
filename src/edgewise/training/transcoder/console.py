"""What a transcoder's training shows while it runs: the plan, a live line, the evaluation. On one process only."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from edgewise.training.sparsify.console import Display, memory_of, span
from edgewise.training.transcoder.evaluation import TranscoderEvaluation

if TYPE_CHECKING:
    from edgewise.training.transcoder.run import StepLog, TranscoderRun


class TranscoderScreen(Display):
    """Prints for the main process, is silent on the others."""

    def plan(self, run: "TranscoderRun", seconds: float) -> None:  # pyright: ignore
        """Before the first step: what will be done."""
        info, config, steps = run.transcoder.config, run.config, run.steps - run.step_number
        parameters = sum(p.numel() for p in run.model.parameters())
        kind = "a sparse twin" if info.gated else "a dense model"
        rows = {
            "model": f"{info.model or 'the given model'}, {kind}: {info.layers} layers of width {info.width}",
            "features": f"{info.features:,} of each layer, {parameters / 1e6:.2f}M trained parameters"
            + (f", begun from {config.start_from}" if config.start_from else ""),
            "recipe": f"l0 {config.l0:g}, learning rate {run.rates[0]:g}",
            "text": f"{run.data.train.name}, rows of {run.data.train.context} tokens",
            "work": f"{steps:,} steps x {run.tokens_per_step:,} tokens = {steps * run.tokens_per_step / 1e6:.2f}M tokens",
            "time": f"about {span(steps * seconds)} ({run.tokens_per_step / seconds:,.0f} tokens/s measured)",
            "memory": f"about {memory_of(run) / 2**30:.1f} GB",  # pyright: ignore
            "results": str(config.out),
        }
        for label, text in rows.items():
            self.print(f"{label:<9}{text}")

    def described(self, run: "TranscoderRun", seen: "StepLog") -> str:  # pyright: ignore
        """A step, in the live line."""
        layers = len(seen.mse)
        return (
            f"explained {1 - sum(seen.mse) / layers:.3f} (worst layer {1 - max(seen.mse):.3f}) · "
            f"{sum(seen.l0) / layers:.1f} features a token and layer"
        )

    def result(self, measured: TranscoderEvaluation, stopped: str, out: Path) -> None:  # pyright: ignore
        print_transcoder(measured, self.console)
        self.print(
            f"{stopped}: {measured.mean_explained_variance:.2%} of variance explained by {measured.mean_l0:.1f} features "
            f"a token and layer; with all MLPs replaced the loss is {measured.replaced_loss:.4f}, "
            f"{measured.difference:+.4f}"
        )
        if measured.massive:
            self.print(
                f"left alone: {measured.massive:.2%} of outputs, massive ones as at the first token of a text; "
                "in a trace they are errors"
            )
        self.print(f"transcoder.safetensors, config.json, summary.json and log.jsonl are in {out}")
        print(out)


def print_transcoder(measured: TranscoderEvaluation, console: Console | None = None) -> None:
    """A table, one layer to a row."""
    table = Table("layer", "explained", "active features", "never active")
    rows = zip(measured.explained_variance, measured.l0, measured.dead, strict=True)
    for layer, (explained, l0, dead) in enumerate(rows):
        table.add_row(f"L{layer}", f"{explained:.2%}", f"{l0:.1f}", f"{dead:.1%}")
    (console or Console()).print(table)
