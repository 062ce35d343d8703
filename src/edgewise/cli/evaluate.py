"""`edgewise eval`."""

from pathlib import Path
from typing import Annotated

import tyro

from edgewise.cli.arguments import DataArgument, ModelsArgument


def evaluate(
    models: ModelsArgument,
    data: DataArgument = None,
    context: int | None = None,
    tokens: Annotated[str, tyro.conf.arg(metavar="N")] = "64K",
    heads: bool = False,
    sinks: bool = False,
    out: Path | None = None,
) -> None:
    """Measure loss, perplexity, density and edges per query of a model, or of a dense model and its twin.

    Examples:
      edgewise eval pocket pocket-sparse --heads
      edgewise eval gpt2 runs/gpt2-sparse --data held_out.txt --tokens 1M --out runs/eval.json

    Args:
        models: Shipped names, folders or Hugging Face names.
        data: Text, jsonl or parquet files, folders of them, or the name of a dataset. The shipped models bring their own.
        context: Tokens per sequence; the shortest of the models' contexts (at most 1024) if not given.
        tokens: Tokens to read: 64K, 1M.
        heads: Also print each head's edges per query.
        sinks: Also measure how much attention goes to the first token of a text (attention sink).
        out: Also write all figures to this JSON file.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.tables.evaluation import print_evaluation
    from edgewise.cli.tables.output import write_json
    from edgewise.core.console import Display
    from edgewise.measure.evaluate import evaluate_models
    from edgewise.training.sparsify.config import count

    results = evaluate_models(models, data, context, count(tokens), sinks, display=Display())
    print_evaluation(results, heads)
    if out is not None:
        write_json({name: measured.to_dict() for name, measured in results.items()}, out)
