"""Tasks with a known answer: pairs of clean and corrupt prompts with the same number of tokens.

    task = make_task("ioi", tokenizer, n=100)     # or read_task("mine.jsonl", tokenizer)
    prompts = task.prompts()
    score(logits, prompts, task.metric)           # one number for each prompt

Modules:
    words, wordings   lists of words and sentences
    lexicon           those of one split, which share nothing with the others
    pairs             a task, its prompts as tensors, its metric
    builtin           texts of the five built-in tasks
    tokenization      texts as tokens with their spans
    align             pairs of texts as pairs of aligned tokens
    generate          tasks by name, made of drafts for a tokenizer
    jsonl             tasks from the user's files
    prompt            one prompt of the user's
    measure           a model's accuracy on tasks (`edgewise tasks`)
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
