"""`edgewise tasks`."""

from pathlib import Path

from edgewise.cli.arguments import PLACEMENT, ModelArgument, PlacementFlags


def tasks(
    model: ModelArgument,
    task: tuple[str, ...] | None = None,
    n: int = 100,
    seed: int = 0,
    out: Path | None = None,
    placement: PlacementFlags = PLACEMENT,
) -> None:
    """Measure a model's accuracy on tasks with a known answer, and show three example prompts of each.

    Examples:
      edgewise tasks pocket
      edgewise tasks gpt2 --task ioi my_task.jsonl --n 200

    Args:
        model: An embedded model (pocket, pocket-sparse), a folder, or a Hugging Face name such as gpt2.
        task: Any of copy, ioi, greater-than, docstring, antonym, or JSONL files of your own with clean, corrupt, answer,
            wrong on each line. All five if not given.
        n: Prompts of each task.
        seed: Seed of the prompts.
        out: Also write all results to this JSON file.
        placement: Where models run, and in which precision.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    from edgewise.cli.tables.output import write_results
    from edgewise.cli.tables.tasks import print_tasks
    from edgewise.core.console import Display
    from edgewise.core.ranges import PromptCount, Seed, check_argument
    from edgewise.models.loaded import load_models
    from edgewise.tasks.measure import measure_tasks

    check_argument("n", n, PromptCount)  # before the model is loaded
    check_argument("seed", seed, Seed)
    models = load_models(model, device=placement.device, dtype=placement.dtype, display=Display())
    measured = measure_tasks(models, task, n, seed)
    print_tasks(measured)
    if out is not None:
        write_results(measured.to_dict(), out)
