"""`edgewise eval`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from edgewise.cli.arguments import PLACEMENT, DataArgument, Flags, ModelsArgument, PlacementFlags


@dataclass(frozen=True)
class Measurement:
    """What is measured, on how much text, or on which tasks."""

    context: int | None = None
    """Tokens per sequence; the shortest of the models' contexts (at most 1024) if not given."""
    tokens: Annotated[str, tyro.conf.arg(metavar="N")] = "64K"
    """Tokens to read: 64K, 1M."""
    heads: bool = False
    """Also print each head's edges per query."""
    sinks: bool = False
    """Also measure how much attention goes to the first token of a text (attention sink)."""
    tasks: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="TASK [TASK ...]")] = None
    """Measure accuracy on these tasks of lm-evaluation-harness instead (pip install 'edgewise[eval]'); paper stands for
    those of the paper."""
    limit: int | None = None
    """With tasks, how many documents of each to read; all if not given."""
    shots: int = 0
    """With tasks, solved examples before each question."""
    task_folder: Path | None = None
    """With tasks, a folder of task files (YAML) of your own."""
    out: Path | None = None
    """Also write all results to this JSON file."""


def evaluate(
    models: ModelsArgument,
    measured: Flags[Measurement],
    data: DataArgument = None,
    placement: PlacementFlags = PLACEMENT,
) -> None:
    """Measure loss, perplexity, density and edges per query of a model, or of a dense model and its twin; or score tasks.

    Examples:
      edgewise eval pocket pocket-sparse --heads
      edgewise eval gpt2 runs/gpt2-sparse --data held_out.txt --tokens 1M --out runs/eval.json
      edgewise eval gpt2 runs/gpt2-sparse --tasks paper     TruthfulQA, PIQA, OpenBookQA, ARC-Easy: the paper's table

    Args:
        models: Embedded models, folders or Hugging Face names.
        measured: What is measured.
        data: Text, jsonl or parquet files, folders of them, or the name of a dataset. The embedded models bring their own.
        placement: Where models run, and in which precision.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.tables.evaluation import print_benchmarks, print_evaluation
    from edgewise.cli.tables.output import write_results
    from edgewise.core.console import Display
    from edgewise.core.quantities import token_count
    from edgewise.measure.benchmarks import evaluate_tasks
    from edgewise.measure.evaluate import evaluate_models
    from edgewise.models.loaded import load_models

    device, dtype, display = placement.device, placement.dtype, Display()
    if measured.tasks is not None:
        loaded = load_models(models, device=device, dtype=dtype, display=display)
        scores = evaluate_tasks(
            loaded,
            measured.tasks,
            limit=measured.limit,
            shots=measured.shots,
            task_folder=measured.task_folder,
        )
        print_benchmarks(scores)
        results = [asdict(score) for score in scores.scores]
    else:
        tokens = token_count(measured.tokens)
        evaluation = evaluate_models(
            models, data, context=measured.context, tokens=tokens, sinks=measured.sinks, device=device, dtype=dtype,
            display=display,
        )  # fmt: skip
        print_evaluation(evaluation, measured.heads)
        results = evaluation.to_dict()
    if measured.out is not None:
        write_results(results, measured.out)
