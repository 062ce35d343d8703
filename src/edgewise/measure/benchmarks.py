"""Accuracy on the tasks of lm-evaluation-harness, dense beside sparse (`edgewise eval --tasks`)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.files import write_json
from edgewise.core.ranges import Position, Size, check_argument
from edgewise.core.results import Result
from edgewise.core.schema import read_as
from edgewise.models.find import find_model
from edgewise.models.loaded import ModelsLike, load_models, model_paths

PAPER = ("truthfulqa_mc2", "piqa", "openbookqa", "arc_easy")
"""TruthfulQA, PIQA, OpenBookQA and ARC-Easy: the table of the paper."""
_METRICS = ("acc", "acc_norm", "exact_match")
"""What a task is judged by: the first of these that it has."""


@dataclass(frozen=True)
class Score:
    """One model on one task."""

    task: str
    model: str
    metric: str
    value: float
    stderr: float | None


@dataclass(frozen=True, repr=False)
class Benchmarks(Result):
    """Scores of one model, or of a dense model and its twin, on tasks of lm-evaluation-harness."""

    models: tuple[str, ...]
    scores: tuple[Score, ...]

    def table(self) -> list[list[str]]:
        tasks = list(dict.fromkeys((score.task, score.metric) for score in self.scores))
        rows = [["task", "metric", *self.models, *(["difference"] if len(self.models) == 2 else [])]]
        for task, metric in tasks:
            scores = [score for score in self.scores if (score.task, score.metric) == (task, metric)]
            cells = [
                f"{s.value:.3f}" + (f" ± {s.stderr:.3f}" if s.stderr is not None else "") for s in scores
            ]
            difference = [f"{scores[1].value - scores[0].value:+.3f}"] if len(scores) == 2 else []
            rows.append([task, metric, *cells, *difference])
        return rows

    def save(self, folder: str | Path) -> Path:
        """Write benchmarks.json."""
        content = {"models": self.models, "scores": [asdict(score) for score in self.scores]}
        return write_json(Path(folder, "benchmarks.json"), content, indent=2)

    @classmethod
    def load(cls, folder: str | Path) -> "Benchmarks":
        """Read benchmarks.json."""
        return read_as(cls, Path(folder, "benchmarks.json"), "benchmarks")


def evaluate_tasks(
    models: ModelsLike,
    tasks: str | Sequence[str] = "paper",
    *,
    limit: int | None = None,
    shots: int = 0,
    batch_size: int = 8,
    task_folder: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    display: Display | None = None,
) -> Benchmarks:
    """Score one model, or a dense model and its twin, on tasks of lm-evaluation-harness (`pip install edgewise[eval]`).

    >>> edgewise.evaluate_tasks(["gpt2", "runs/gpt2-sparse"], "paper", limit=100)

    Args:
        models: One or two names, folders or loaded models.
        tasks: Names of the harness's tasks; `paper` are TruthfulQA, PIQA, OpenBookQA and ARC-Easy.
        limit: Documents of each task to read; all if not given.
        shots: Solved examples before each question.
        batch_size: Requests per forward pass.
        task_folder: A folder with task files (YAML) of your own.
        tokenizer: Required with loaded models.
        display: Where progress is shown; nowhere if not given.
    """
    check_argument("limit", limit, Size | None)
    check_argument("shots", shots, Position)
    check_argument("batch_size", batch_size, Size)
    for name in model_paths(models):
        find_model(name)  # refused before the harness's own tasks are read, which takes seconds
    harness = _harness()
    names = [
        name
        for task in ([tasks] if isinstance(tasks, str) else tasks)
        for name in (PAPER if task == "paper" else (task,))
    ]
    manager = _task_manager(harness, names, task_folder)
    loaded = load_models(models, tokenizer=tokenizer, display=display)
    scores: list[Score] = []
    for name, model in zip(loaded.names, loaded.models, strict=True):
        with loaded.display.status(f"{name}: {', '.join(names)}"):
            lm = harness.EdgewiseLM(model.eval(), tokenizer=loaded.tokenizer, batch_size=batch_size)
            try:
                results = harness.simple_evaluate(
                    lm, tasks=names, limit=limit, num_fewshot=shots, task_manager=manager, log_samples=False
                )
            except Exception as error:  # tasks fetch their data: no network, no such dataset, another format
                raise EdgewiseError(
                    f"lm-evaluation-harness cannot run {', '.join(names)}: {first_line(error)}"
                ) from error
        scores += [_score(name, task, figures) for task, figures in results["results"].items()]
    return Benchmarks(loaded.names, tuple(scores))


def _task_manager(harness: Any, names: Sequence[str], folder: str | Path | None) -> Any:
    """The harness's list of tasks: a folder's own if they are enough, because reading all of its own takes seconds."""
    folder = None if folder is None else str(folder)
    managers = (harness.TaskManager(include_path=folder, include_defaults=own) for own in (False, True))
    unknown: list[str] = []
    for manager in managers if folder is not None else [harness.TaskManager()]:
        unknown = [name for name in names if name not in manager.all_tasks]
        if not unknown:
            return manager
    raise EdgewiseError(
        f"lm-evaluation-harness knows no task {', '.join(unknown)}; `lm_eval ls tasks` lists them"
    )


def _harness() -> Any:
    """The parts of the harness that are used; an optional package, which takes seconds to import."""
    try:
        from lm_eval.evaluator import simple_evaluate  # pyright: ignore
        from lm_eval.tasks import TaskManager  # pyright: ignore
    except ImportError as error:
        raise EdgewiseError(
            "tasks are those of lm-evaluation-harness: pip install 'edgewise[eval]'"
        ) from error
    from edgewise.measure.lm_eval_model import EdgewiseLM  # imports lm_eval

    return SimpleNamespace(simple_evaluate=simple_evaluate, TaskManager=TaskManager, EdgewiseLM=EdgewiseLM)


def _score(model: str, task: str, figures: dict[str, Any]) -> Score:
    """The score by which a task judges a model, from the harness's keys `metric,filter`."""
    values = {
        key.partition(",")[0]: value
        for key, value in figures.items()
        if isinstance(value, int | float) and "," in key
    }
    metric = next((metric for metric in _METRICS if metric in values), None)
    metric = metric or next(key for key in values if not key.endswith("_stderr"))
    stderr = values.get(f"{metric}_stderr")
    return Score(task, model, metric, float(values[metric]), None if stderr is None else float(stderr))
