"""`edgewise eval`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from edgewise.cli.arguments import PLACEMENT, DataArgument, ModelsArgument, PlacementFlags


def evaluate(
    models: ModelsArgument,
    data: DataArgument = None,
    context: int | None = None,
    tokens: Annotated[str, tyro.conf.arg(metavar="N")] = "64K",
    heads: bool = False,
    sinks: bool = False,
    tasks: Annotated[
        tuple[str, ...] | None, tyro.conf.arg(metavar="TASK [TASK ...]", help_behavior_hint="")
    ] = None,
    limit: int | None = None,
    shots: int = 0,
    task_folder: Path | None = None,
    out: Path | None = None,
    placement: PlacementFlags = PLACEMENT,
) -> None:
    """Measure loss, perplexity, density and edges per query of a model, or of a dense model and its twin; or score tasks.

    Examples:
      edgewise eval pocket pocket-sparse --heads
      edgewise eval gpt2 runs/gpt2-sparse --data held_out.txt --tokens 1M --out runs/eval.json
      edgewise eval gpt2 runs/gpt2-sparse --tasks paper     TruthfulQA, PIQA, OpenBookQA, ARC-Easy: the paper's table

    Args:
        models: Embedded models, folders or Hugging Face names.
        data: Text, jsonl or parquet files, folders of them, or the name of a dataset. The embedded models bring their own.
        context: Tokens per sequence; the shortest of the models' contexts (at most 1024) if not given.
        tokens: Tokens to read: 64K, 1M.
        heads: Also print each head's edges per query.
        sinks: Also measure how much attention goes to the first token of a text (attention sink).
        tasks: Instead of all that, accuracy on tasks of lm-evaluation-harness (pip install 'edgewise[eval]'), the word paper
            for those of the paper.
        limit: With tasks, how many documents of each to read; all if not given.
        shots: With tasks, solved examples before each question.
        task_folder: With tasks, a folder of task files (YAML) of your own.
        out: Also write all results to this JSON file.
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

    if tasks is not None:
        loaded = load_models(models, device=placement.device, dtype=placement.dtype, display=Display())
        scores = evaluate_tasks(loaded, tasks, limit=limit, shots=shots, task_folder=task_folder)
        print_benchmarks(scores)
        if out is not None:
            write_results([asdict(score) for score in scores.scores], out)
        return
    results = evaluate_models(
        models,
        data,
        context=context,
        tokens=token_count(tokens),
        sinks=sinks,
        device=placement.device,
        dtype=placement.dtype,
        display=Display(),
    )
    print_evaluation(results, heads)
    if out is not None:
        write_results(results.to_dict(), out)
