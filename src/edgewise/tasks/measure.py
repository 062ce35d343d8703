"""How well a model does the tasks: what `edgewise tasks` measures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.measure.evaluation import evaluating
from edgewise.models.checkpoint import load, load_tokenizer
from edgewise.models.info import info
from edgewise.tasks.generate import TASKS, CannotExpress, make_task
from edgewise.tasks.jsonl import read_task
from edgewise.tasks.pairs import Prompts, Task, score

_TOKENS_AT_ONCE = 1024  # logits of a large vocabulary take most of the memory


@dataclass(frozen=True)
class TaskResult:
    """What a model answers to the prompts of a task."""

    task: Task
    clean: Tensor  # float32 [n]: the scores of the clean prompts
    corrupt: Tensor  # float32 [n]: the same answers, after the corrupt prompts
    likeliest: Tensor  # bool [n]: whether the likeliest token of all after the clean prompt is an answer

    @property
    def accuracy(self) -> float:
        """The share of clean prompts after which the answer is preferred to the wrong one."""
        return (self.clean > 0).float().mean().item()

    @property
    def top_1(self) -> float:
        return self.likeliest.float().mean().item()

    def to_dict(self) -> dict[str, Any]:
        rows = zip(self.task.pairs, self.clean.tolist(), self.corrupt.tolist(), strict=True)
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
                for pair, clean, corrupt in rows
            ],
        }


@dataclass(frozen=True)
class TasksMeasured:
    """All tasks of a model."""

    model: str
    results: dict[str, TaskResult]
    impossible: dict[str, str]
    """Tasks that its tokenizer cannot express, and why."""

    def to_dict(self) -> dict[str, Any]:
        tasks = {name: found.to_dict() for name, found in self.results.items()}
        return {"model": self.model, "tasks": tasks, "impossible": self.impossible}


def measure_tasks(
    name: str | Path,
    tasks: Sequence[str] | None = None,
    n: int = 100,
    seed: int = 0,
    display: Display | None = None,
) -> TasksMeasured:
    """Measure a model on tasks by name and on JSONL files; on all five if none is given.

    >>> measure_tasks("pocket", ["ioi", "mine.jsonl"])
    """
    display = display or Display(quiet=True)
    tokenizer, context = load_tokenizer(name), info(name).context or None
    names = TASKS if tasks is None else tasks
    made: dict[str, Task] = {}
    impossible: dict[str, str] = {}
    with display.bar("prompts", len(names)) as advance:
        for task_name in names:
            try:
                made[task_name] = get_task(task_name, tokenizer, n, seed, context)
            except CannotExpress as error:
                impossible[task_name] = str(error)
            advance(1)
    if not made:
        raise EdgewiseError("; ".join(impossible.values()) or "name at least one task")
    model = load(name)
    with display.bar(str(name), 2 * sum(len(task.pairs) for task in made.values())) as advance:
        results = {task_name: measure_task(model, task, advance) for task_name, task in made.items()}
    return TasksMeasured(str(name), results, impossible)


def get_task(name: str, tokenizer: Any, n: int, seed: int = 0, context: int | None = None) -> Task:
    """A task by name or from a file."""
    if name not in TASKS and any(mark in name for mark in "./\\"):
        return read_task(name, tokenizer, context)
    return make_task(name, tokenizer, n, seed, context)


def check_fits(model: Any, prompts: Prompts) -> None:
    """Refuse prompts that were made with another model's tokenizer, where that can be seen."""
    size = model.get_input_embeddings().num_embeddings
    if max(int(ids.max()) for ids in (prompts.clean, prompts.corrupt, prompts.columns)) >= size:
        raise EdgewiseError(
            f"the tokenizer has more words than the model ({size:,}): they do not belong together"
        )


@torch.no_grad()
def measure_task(
    model: nn.Module, task: Task, progress: Callable[[int], object] = lambda n: None
) -> TaskResult:
    """Score a model's answers to clean and corrupt prompts. `progress` is called with the number of prompts finished."""
    device = next(model.parameters()).device
    prompts = task.prompts(device)
    check_fits(model, prompts)
    rows = max(1, _TOKENS_AT_ONCE // prompts.clean.shape[1])
    found: dict[str, list[Tensor]] = {"clean": [], "corrupt": [], "likeliest": []}
    with evaluating(model):
        for first in range(0, len(task.pairs), rows):
            part = type(prompts)(*(x[first : first + rows] for x in prompts))
            for side, ids in (("clean", part.clean), ("corrupt", part.corrupt)):
                logits = model(input_ids=ids, use_cache=False).logits
                logits = logits[torch.arange(len(ids), device=device), part.last].float()
                found[side].append(score(logits, part, task.metric).cpu())
                if side == "clean":
                    answers = (part.columns == logits.argmax(-1, keepdim=True)) & (part.signs > 0)
                    found["likeliest"].append(answers.any(-1).cpu())
                progress(len(ids))
    return TaskResult(task, **{key: torch.cat(pieces) for key, pieces in found.items()})
