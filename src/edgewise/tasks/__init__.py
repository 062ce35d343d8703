"""Tasks with a known answer: clean and corrupt prompts that are the same length, token by token.

    task = make_task("ioi", tokenizer, n=100)     # or read_task("mine.jsonl", tokenizer)
    prompts = task.prompts()
    score(logits, prompts, task.metric)           # one number per prompt

`pairs` says what a task is and scores it, `align` checks texts against a tokenizer, `drafts` writes texts, `generate` makes
tasks of them, `own_file` reads the user's, `measure` asks a model (`edgewise tasks`), `report` prints.
"""

from edgewise.tasks.generate import TASKS as TASKS
from edgewise.tasks.generate import make_task as make_task
from edgewise.tasks.jsonl import read_task as read_task
from edgewise.tasks.pairs import Metric as Metric
from edgewise.tasks.pairs import Pair as Pair
from edgewise.tasks.pairs import Prompts as Prompts
from edgewise.tasks.pairs import Task as Task
from edgewise.tasks.pairs import score as score

__all__ = ["TASKS", "Metric", "Pair", "Prompts", "Task", "make_task", "read_task", "score"]
