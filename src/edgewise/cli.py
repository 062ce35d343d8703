"""The command line: each command is a function, its docstring and annotations are the help. No logic lives here."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from edgewise.circuits.config import CircuitConfig
from edgewise.errors import EdgewiseError
from edgewise.posttraining.config import SparsifyConfig, count


def info(model: Annotated[str, tyro.conf.Positional], json: bool = False) -> None:
    """Say what a model is: architecture, layers x heads, dense or sparse, its gate, parameters, memory.

    Reads the config and the headers of the weight files only, so it is quick for any size.

    Args:
        model: A shipped name (pocket, pocket-addition, pocket-sparse), a folder, or a Hugging Face name such as gpt2.
        json: Print JSON instead of text.
    """
    import edgewise

    described = edgewise.info(model)
    print(described.to_json() if json else described)


def sparsify(
    model: Annotated[str, tyro.conf.Positional],
    config: Annotated[SparsifyConfig, tyro.conf.arg(name="")],
    data: tuple[str, ...] | None = None,
) -> None:
    """Post-train a dense model until almost no attention edges remain, at the same loss.

    Says what it will do, shows how it goes, and leaves the sparse twin with summary.json, log.jsonl and run.png in --out.
    Ctrl-C saves; --resume goes on. On several devices: accelerate launch -m edgewise sparsify ...

    Args:
        model: The dense model: a shipped name (pocket), a folder, or a Hugging Face name such as gpt2.
        config: How.
        data: Text, jsonl or parquet files, folders of them, or the name of a Hugging Face dataset. The shipped models bring
            their own.
    """
    import edgewise

    edgewise.sparsify(model, data, config)


def evaluate(
    models: Annotated[tuple[str, ...], tyro.conf.Positional],
    data: tuple[str, ...] | None = None,
    context: int | None = None,
    tokens: str = "64K",
    heads: bool = False,
    out: Path | None = None,
) -> None:
    """Loss, perplexity, density and edges per query of one model, or of a dense model and its twin side by side.

    Args:
        models: Shipped names, folders or Hugging Face names.
        data: Text, jsonl or parquet files, folders of them, or the name of a dataset. The shipped models bring their own.
        context: Tokens to a row; the shortest of the models' contexts (at most 1024) if not given.
        tokens: How much of the data to read.
        heads: Also print each head's edges per query.
        out: Also write everything to this JSON file.
    """
    from edgewise.evaluation import evaluate_models, print_evaluation

    print_evaluation(evaluate_models(models, data, context, count(tokens)), heads, out)


def tasks(
    model: Annotated[str, tyro.conf.Positional],
    task: tuple[str, ...] | None = None,
    n: int = 100,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """How well a model does tasks with a known answer: accuracy of each, with three example prompts.

    Args:
        model: A shipped name (pocket, pocket-sparse), a folder, or a Hugging Face name such as gpt2.
        task: Any of copy, ioi, greater-than, docstring, antonym, or JSONL files of your own with clean, corrupt, answer,
            wrong on each line. All five if not given.
        n: Prompts of each task.
        seed: Decides which.
        out: Also write everything to this JSON file.
    """
    from edgewise.tasks.measure import measure_tasks
    from edgewise.tasks.report import print_tasks

    print_tasks(measure_tasks(model, task, n, seed), out)


def circuit(
    models: Annotated[tuple[str, ...], tyro.conf.Positional],
    config: Annotated[CircuitConfig, tyro.conf.arg(name="")],
) -> None:
    """Find the heads and edges that carry a task's effect, in a model or in a dense model and its twin.

    Heads are patched exactly, one by one; edges are ranked by attribution and their curve measured by patching. The table
    goes to the screen, all curves and rankings to circuit.json in --out.

    Args:
        models: One model, or two to compare (dense first): shipped names, folders or Hugging Face names.
        config: How.
    """
    from edgewise.circuits.find import find_circuits
    from edgewise.circuits.screen import Screen, print_result

    screen = Screen()
    print_result(find_circuits(models, config, screen=screen))
    if config.out is not None:
        screen.say(f"circuit.json is in {config.out}")


def demo() -> None:
    """Run the main job on what is shipped with the package, and say where the results are (runs/demo)."""
    from edgewise.demo import run

    run()


COMMANDS = {
    "info": info,
    "sparsify": sparsify,
    "eval": evaluate,
    "tasks": tasks,
    "circuit": circuit,
    "demo": demo,
}


def main() -> None:
    """Entry point of `edgewise` and `python -m edgewise`."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="edgewise",
            description="Read what a transformer does: remove attention edges, keep the loss, look at what is left.",
        )
    except EdgewiseError as error:
        print(f"edgewise: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            print(f"edgewise: {interrupt}", file=sys.stderr)
        sys.exit(130)
