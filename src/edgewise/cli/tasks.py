"""`edgewise tasks`."""

from pathlib import Path

from edgewise.cli.arguments import ModelArgument


def tasks(
    model: ModelArgument,
    task: tuple[str, ...] | None = None,
    n: int = 100,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Measure a model's accuracy on tasks with a known answer, and show three example prompts of each.

    Examples:
      edgewise tasks pocket
      edgewise tasks gpt2 --task ioi my_task.jsonl --n 200

    Args:
        model: A shipped name (pocket, pocket-sparse), a folder, or a Hugging Face name such as gpt2.
        task: Any of copy, ioi, greater-than, docstring, antonym, or JSONL files of your own with clean, corrupt, answer,
            wrong on each line. All five if not given.
        n: Prompts of each task.
        seed: Seed of the prompts.
        out: Also write all figures to this JSON file.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.tables.output import write_json
    from edgewise.cli.tables.tasks import print_tasks
    from edgewise.core.console import Display
    from edgewise.models.loaded import load_models
    from edgewise.tasks.measure import measure_tasks

    measured = measure_tasks(load_models(model, display=Display()), task, n, seed)
    print_tasks(measured)
    if out is not None:
        write_json(measured.to_dict(), out)
