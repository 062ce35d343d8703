"""Measure a model's accuracy on tasks: `edgewise tasks`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.core.files import write_json
from edgewise.core.ranges import PromptCount, Seed, check_argument
from edgewise.core.results import Result
from edgewise.measure.forward import eval_mode
from edgewise.models.loaded import LoadedModels, ModelsLike, load_models
from edgewise.tasks.generate import TASKS, CannotExpress, get_task
from edgewise.tasks.pairs import Prompts, Task, score

FILE = "tasks.json"
_TOKENS_PER_BATCH = 1024  # logits of a large vocabulary take most of the memory


@dataclass(frozen=True)
class TaskResult:
    """A model's scores on the prompts of one task."""

    task: Task
    clean: Tensor  # float32 [n]: metric of the clean prompts
    corrupt: Tensor  # float32 [n]: metric of the same answers after the corrupt prompts
    likeliest: Tensor  # bool [n]: whether the most likely token after the clean prompt is an answer

    @property
    def accuracy(self) -> float:
        """Share of clean prompts whose answer scores above the wrong one."""
        return (self.clean > 0).float().mean().item()

    @property
    def top_1(self) -> float:
        """Share of clean prompts whose most likely next token is an answer."""
        return self.likeliest.float().mean().item()

    def to_dict(self) -> dict[str, Any]:
        scores = zip(self.task.pairs, self.clean.tolist(), self.corrupt.tolist(), strict=True)
        return {
            "metric": self.task.metric,
            "prompts": len(self.task.pairs),
            "skipped": self.task.skipped,
            "accuracy": self.accuracy,
            "top_1": self.top_1,
            "clean": self.clean.mean().item(),
            "corrupt": self.corrupt.mean().item(),
            "pairs": [
                {
                    "clean": pair.clean,
                    "corrupt": pair.corrupt,
                    "answers": pair.answers,
                    "wrong": pair.wrong,
                    "clean_score": clean,
                    "corrupt_score": corrupt,
                }
                for pair, clean, corrupt in scores
            ],
        }


@dataclass(frozen=True, repr=False)
class TasksResult(Result):
    """A model's scores on several tasks."""

    model: str
    results: dict[str, TaskResult]
    """By the name of the task, as it was given."""
    impossible: dict[str, str]
    """Tasks that the tokenizer cannot express, and why."""

    def table(self) -> list[list[str]]:
        """One line for each task."""
        header = ["task", "prompts", "skipped", "accuracy", "top-1", "score clean", "score corrupt", "metric"]
        rows = [
            [
                name,
                str(len(result.task.pairs)),
                str(sum(result.task.skipped.values())),
                f"{result.accuracy:.1%}",
                f"{result.top_1:.1%}",
                f"{result.clean.mean():+.3f}",
                f"{result.corrupt.mean():+.3f}",
                result.task.metric,
            ]
            for name, result in self.results.items()
        ]
        reasons = self.impossible.items()
        return [
            header,
            *rows,
            *([name, "0", *[""] * 5, why.removeprefix(f"{name} ")] for name, why in reasons),
        ]

    def to_dict(self) -> dict[str, Any]:
        tasks = {name: result.to_dict() for name, result in self.results.items()}
        return {"model": self.model, "tasks": tasks, "impossible": self.impossible}

    def save(self, folder: str | Path) -> Path:
        """Write tasks.json into a folder."""
        return write_json(Path(folder) / FILE, self.to_dict(), indent=2)


def measure_tasks(
    model: ModelsLike,
    tasks: Sequence[str] | None = None,
    n: PromptCount = 100,
    seed: Seed = 0,
    *,
    display: Display | None = None,
) -> TasksResult:
    """Measure a model on tasks by name and on JSONL files; on all five if none is given.

    Args:
        model: A name (see `edgewise.load`), or one loaded model.
        tasks: Names of tasks and paths of JSONL files.
        n: Pairs of prompts of each task.
        seed: Seed of the prompts.
        display: Where progress is shown; nowhere if not given.

    >>> measure_tasks("pocket", ["ioi", "mine.jsonl"])
    """
    check_argument("n", n, PromptCount)
    check_argument("seed", seed, Seed)
    loaded = load_models(model, display=display)
    if len(loaded) != 1:
        raise EdgewiseError(f"tasks are measured on one model at a time, not {len(loaded)}")
    made, impossible = _make_tasks(loaded, TASKS if tasks is None else tasks, n, seed)
    if not made:
        raise EdgewiseError("; ".join(impossible.values()) or "name at least one task")
    name, total = loaded.names[0], 2 * sum(len(task.pairs) for task in made.values())
    with loaded.display.bar(name, total) as progress:
        results = {key: measure_task(loaded.models[0], task, progress) for key, task in made.items()}
    return TasksResult(name, results, impossible)


def _make_tasks(
    loaded: LoadedModels, names: Sequence[str], n: int, seed: int
) -> tuple[dict[str, Task], dict[str, str]]:
    """Tasks by name, and why others cannot be expressed."""
    made, impossible = {}, {}
    with loaded.display.bar("prompts", len(names)) as progress:
        for name in names:
            try:
                made[name] = get_task(name, loaded.tokenizer, n, seed, loaded.context)
            except CannotExpress as error:
                impossible[name] = str(error)
            progress(1)
    return made, impossible


def check_fits(model: Any, prompts: Prompts) -> None:
    """Refuse prompts with token ids that the model does not have: they were made with another model's tokenizer."""
    size = model.get_input_embeddings().num_embeddings
    if max(int(ids.max()) for ids in (prompts.clean, prompts.corrupt, prompts.columns)) >= size:
        raise EdgewiseError(
            f"the tokenizer has more words than the model ({size:,}): they do not belong together"
        )


@torch.no_grad()
def measure_task(
    model: nn.Module, task: Task, progress: Callable[[int], object] = lambda prompts: None
) -> TaskResult:
    """Score a model's answers to clean and corrupt prompts. `progress` is called with the number of prompts finished."""
    device = next(model.parameters()).device
    prompts = task.prompts(device)
    check_fits(model, prompts)
    batch_size = max(1, _TOKENS_PER_BATCH // prompts.clean.shape[1])
    scores: dict[str, list[Tensor]] = {"clean": [], "corrupt": [], "likeliest": []}
    with eval_mode(model):
        for first in range(0, len(task.pairs), batch_size):
            batch = Prompts(*(x[first : first + batch_size] for x in prompts))
            for side, ids in (("clean", batch.clean), ("corrupt", batch.corrupt)):
                logits = model(input_ids=ids, use_cache=False).logits
                logits = logits[torch.arange(len(ids), device=device), batch.last].float()
                scores[side].append(score(logits, batch, task.metric).cpu())
                if side == "clean":
                    answers = (batch.columns == logits.argmax(-1, keepdim=True)) & (batch.signs > 0)
                    scores["likeliest"].append(answers.any(-1).cpu())
                progress(len(ids))
    return TaskResult(task, **{key: torch.cat(batches) for key, batches in scores.items()})
