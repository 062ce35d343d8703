"""What a run shows while it runs: the plan, a live line, the result. On one process only."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, track

from edgewise.measure.evaluation import Measured, bytes_of_measuring
from edgewise.measure.memory import projected_peak

if TYPE_CHECKING:
    from edgewise.training.sparsify.run import Run, StepLog

_LATELY = 100  # steps over which the pace is taken
_QUIET_SECONDS = 30.0  # between lines where there is no terminal to repaint


class Display:
    """Prints for the main process, is silent on the others."""

    def __init__(self, is_main: bool):
        self.is_main = is_main
        self.console = Console(stderr=True, quiet=not is_main)
        self.last: Measured | None = None

    def print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def status(self, what: str) -> Any:
        return self.console.status(f"{what} ...") if self.console.is_terminal else nullcontext()

    def track(self, steps: range) -> Iterable[int]:
        """Steps behind a bar that goes away."""
        return track(steps, "", console=self.console, transient=True) if self.console.is_terminal else steps

    def plan(
        self, run: "Run", name: str, dense: Measured, seconds: float, layerwise_seconds: float = 0.0
    ) -> None:
        """Before the first step: what will be done."""
        config, steps = run.config, run.steps - run.step_number
        layerwise_left = max(0, run.layerwise_steps - run.step_number)
        trained = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
        gate = run.gate
        null_value = ", attending to nothing has a value" if gate.null_value else ""
        averaged = 0 if run.average is None else 4  # bytes for each weight
        validation = bytes_of_measuring(run.dense, run.data.held_out)
        stops = [f"density {config.density:.2%}"] if config.density is not None else []
        rows = {
            "model": f"{name}: {trained / 1e6:.2f}M trained parameters"
            + (f" (LoRA, rank {config.lora})" if config.lora else "")
            + (" (only attention)" if config.attention_only else ""),
            "recipe": f"{run.recipe.name}, gate {gate.kind} from b = {gate.b:g}{null_value}, learning rate {run.rates[0]:g}",
            "text": f"{run.data.train.name}, rows of {run.data.train.context} tokens",
            "work": f"{steps:,} steps x {run.tokens_per_step:,} tokens = {steps * run.tokens_per_step / 1e6:.2f}M tokens"
            + "".join(f", or until {stop}" for stop in stops),
            "time": f"about {span((steps - layerwise_left) * seconds + layerwise_seconds)} "
            f"({run.tokens_per_step / seconds:,.0f} tokens/s measured)",
            "memory": f"about {memory_of(run, averaged, validation) / 2**30:.1f} GB",
            "keep": f"held-out loss <= {dense.ce:.4f} + {config.loss_tolerance:g} nats ({dense.tokens:,} tokens)",
            "results": str(config.out),
        }
        if layerwise_left:
            pace = layerwise_left * run.tokens_per_step / layerwise_seconds
            rows["work"] += f", of which {layerwise_left:,} with each layer alone ({pace:,.0f} tokens/s)"
        for label, text in rows.items():
            self.print(f"{label:<9}{text}")

    @contextmanager
    def live(self, run: Any, ends: Callable[[], int] | None = None) -> Iterator[Callable[[Any], None]]:
        """A bar with the numbers that matter; where nothing can be repainted, a line now and then. `ends` tells where the
        part of the run ends that is being done."""
        ends = ends or (lambda: run.steps)
        bar = Progress(BarColumn(20), TextColumn("{task.description}"), console=self.console)
        terminal = self.console.is_terminal
        printed = time.monotonic()
        lately = deque([(printed, run.step_number)], _LATELY)  # when which step was done
        with bar if terminal else nullcontext():
            task = bar.add_task("first step", total=run.steps, completed=run.step_number)

            def line(seen: Any) -> None:
                nonlocal printed
                now = time.monotonic()
                lately.append((now, run.step_number))
                if not terminal and now - printed < _QUIET_SECONDS and run.step_number < run.steps:
                    return
                (then, step), end = lately[0], ends()
                pace = (now - then) / (run.step_number - step)
                text = (
                    f"{100 * run.step_number / run.steps:.0f} % · {run.tokens_per_step / pace:,.0f} tokens/s · "
                    f"{self.described(run, seen)} · {span(pace * (end - run.step_number))} left"
                    + ("" if end == run.steps else " of this part")
                )
                if terminal:
                    bar.update(task, completed=run.step_number, total=run.steps, description=text)
                else:
                    self.print(text)
                    printed = now

            yield line

    def described(self, run: "Run", seen: "StepLog") -> str:
        """A step, in the live line."""
        if run.is_layerwise:
            return (
                f"layers alone, about {run.multiplier.gap or 0:+.4f} (may {run.config.loss_tolerance:+g}) · "
                f"density {self._density(seen)} · pressure {run.multiplier.beta:.2g}"
            )
        return (
            f"loss {seen.dense_ce:.3f} {run.multiplier.expected:+.4f} (may {run.config.loss_tolerance:+g}) · "
            f"density {self._density(seen)} · pressure {run.multiplier.beta:.2g}"
        )

    def _density(self, seen: "StepLog") -> str:
        if self.last is None:
            return f"{seen.density:.2%}"
        return f"{self.last.density:.2%} ({self.last.edges_per_query:.2f} edges a query)"

    def checked(self, measured: Measured) -> None:
        self.last = measured

    def result(self, summary: dict[str, Any], out: Path) -> None:
        kept = "kept" if summary["delta_ce"] <= summary["tolerance"] else "NOT kept"
        self.print(
            f"{summary['stopped']}: {summary['density']:.2%} of edges ({summary['edges_per_query']:.2f} a query and head, "
            f"{summary['heads_closed']} of {summary['heads']} heads closed); held-out loss {summary['sparse_ce']:.4f}, "
            f"{summary['delta_ce']:+.4f} against the dense model: {kept}"
        )
        if kept != "kept":
            self.print(
                f"To get the loss back, go on for longer: --resume --out {out} with more --minutes or --tokens"
            )
        self.print(f"The twin, summary.json, log.jsonl and run.png are in {out}")
        print(out)


def span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def memory_of(run: "Run", more: int = 0, beside: int = 0) -> int:
    """What the measured steps took at most, or will when something is done beside what they left, and what comes with the
    first update: the optimizer's two moments, and maybe some more bytes for each weight that is trained."""
    moments = (8 + more) * sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    if run.accelerator.device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() + moments
    return projected_peak(beside) + moments
