"""Tasks made for a tokenizer: drafts are drawn until enough of them can be expressed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import PromptCount, Seed, check_argument
from edgewise.models.registry import embedded_for
from edgewise.tasks import builtin
from edgewise.tasks.align import align, slot_positions
from edgewise.tasks.jsonl import read_task
from edgewise.tasks.lexicon import lexicon_of, share_of
from edgewise.tasks.pairs import MIN_SPLIT, Metric, Pair, Split, Task
from edgewise.tasks.tokenization import UnusablePrompt, check_fast, max_tokens, tokenize
from edgewise.tasks.wordings import COPY_WORDS

_DRAFTS = {
    "copy": builtin.copy,
    "ioi": builtin.ioi,
    "greater-than": builtin.greater_than,
    "docstring": builtin.docstring,
    "antonym": builtin.antonym,
}
TASKS = tuple(_DRAFTS)
MIN_PAIRS = 4
"""Pairs that a task must have, unless fewer are requested."""
_MAX_FAILURES = 2000  # if none of so many drafts is new and can be expressed, the next will not be either


class CannotExpress(EdgewiseError):
    """The tokenizer has no such prompts."""


def make_task(
    name: str,
    tokenizer: Any,
    n: PromptCount,
    seed: Seed = 0,
    context: int | None = None,
    *,
    split: Split | None = None,
) -> Task:
    """Make `n` pairs with distinct clean prompts, or as many as there are; the same seed makes the same pairs.

    With a `split`, words and wordings are its own, which no other split has.
    With an embedded model's tokenizer, only sentences that its training text does not contain are used.

    >>> make_task("ioi", edgewise.load_tokenizer("gpt2"), n=100)
    """
    if name not in TASKS:
        raise EdgewiseError(
            f"there is no task {name!r}; choose from {', '.join(TASKS)}, or give a .jsonl file"
        )
    check_argument("n", n, PromptCount)
    check_argument("seed", seed, Seed)
    check_fast(tokenizer)
    rng, skipped = Random(f"task {name} {seed}"), Skipped()
    draw = _draw(name, tokenizer, split, skipped)
    model = embedded_for(tokenizer)
    pairs: dict[str, Pair] = {}
    failures = 0
    while len(pairs) < n and failures < _MAX_FAILURES:
        failures += 1
        draft = draw(rng)
        texts = draft.texts()
        clean = texts.clean
        if clean in pairs or (model is not None and model.was_trained_on(draft.kind, draft.combination)):
            continue
        try:
            pairs[clean] = align(tokenizer, texts, max_tokens(tokenizer, context))
            failures = 0
        except UnusablePrompt as error:
            skipped.add(error)
    if len(pairs) < min(n, MIN_PAIRS):
        raise CannotExpress(_too_few(name, len(pairs), skipped))
    metric: Metric = "probability difference" if name == "greater-than" else "logit difference"
    return Task(name, metric, tuple(pairs.values()), skipped.reasons())


def _draw(
    name: str, tokenizer: Any, split: Split | None, skipped: "Skipped"
) -> Callable[[Random], builtin.Draft]:
    """What draws drafts that the tokenizer may be able to express."""
    if name == "copy":
        lead, words = _copy_words(tokenizer, skipped)
        words = share_of(words, split)
        if len(words) < 2 * builtin.PERIOD:
            raise CannotExpress(_too_few(name, 0, skipped))
        return partial(builtin.copy, lead=lead, words=words)
    by_digits = name == "greater-than" and _cuts_digits(tokenizer)
    return partial(builtin.greater_than_by_digits if by_digits else _DRAFTS[name], lexicon=lexicon_of(split))


def split_task(name: str, tokenizer: Any, n: PromptCount, seed: Seed = 0, context: int | None = None) -> Task:
    """A task to find circuits by: `n` pairs to search on, half fit and half validation, as many to choose the size by, and
    as many held out, if these are `MIN_SPLIT` pairs or more. Splits have words and wordings of their own, if the tokenizer
    knows enough words. Of a file all pairs, split (see `Task.sizes`).
    """
    if name not in TASKS and any(mark in name for mark in "./\\"):
        return read_task(name, tokenizer, context)
    if 2 * n < MIN_SPLIT:
        return make_task(name, tokenizer, n, seed, context)
    try:
        sizes: dict[Split, int] = {"fit": n // 2, "validation": n - n // 2, "test": n, "selection": n}
        tasks = [make_task(name, tokenizer, m, seed, context, split=split) for split, m in sizes.items()]
    except CannotExpress:
        task = make_task(name, tokenizer, 2 * n, seed, context)
        made = len(task.pairs)
        fit, searched = made // 4, made // 2
        return replace(task, sizes=(fit, searched - fit, made - searched, 0))
    fit, validation, test, selection = (len(task.pairs) for task in tasks)
    skipped = sum((Counter(task.skipped) for task in tasks), Counter())
    pairs = tuple(pair for task in tasks for pair in task.pairs)
    return replace(tasks[0], pairs=pairs, skipped=dict(skipped), sizes=(fit, validation, test, selection))


def get_task(name: str, tokenizer: Any, n: PromptCount, seed: Seed = 0, context: int | None = None) -> Task:
    """A task by name, or from a JSONL file if the name is a path."""
    if name not in TASKS and any(mark in name for mark in "./\\"):
        return read_task(name, tokenizer, context)
    return make_task(name, tokenizer, n, seed, context)


class Skipped:
    """Counts of unusable drafts by reason, each with its first case."""

    def __init__(self):
        self.counts: Counter[str] = Counter()
        self.first: dict[str, UnusablePrompt] = {}

    def add(self, error: UnusablePrompt) -> None:
        self.counts[error.reason] += 1
        self.first.setdefault(error.reason, error)

    def reasons(self) -> dict[str, int]:
        return {str(self.first[reason]): count for reason, count in self.counts.most_common()}


def _too_few(name: str, n_pairs: int, skipped: Skipped) -> str:
    reason = next(iter(skipped.reasons()), "no drafts")
    count = f"only {n_pairs} pairs can be, {MIN_PAIRS} are needed; the others have " if n_pairs else ""
    return f"{name} cannot be expressed with this tokenizer: {count}{reason}"


def _cuts_digits(tokenizer: Any) -> bool:
    """Whether each digit of a number is a token."""
    number = "1732"
    try:
        (tokens,) = tokenize(tokenizer, [f"from {number}"])
    except UnusablePrompt:
        return False
    return [tokens.text[a:b].strip() for a, b in tokens.spans[-len(number) :]] == list(number)


def _copy_words(tokenizer: Any, skipped: Skipped) -> tuple[str, list[str]]:
    """What the text has to begin with (nothing, or a space), and the words that can be copied then."""
    choices = []
    for lead in ("", " "):
        usable, refusals = [], []
        for word in COPY_WORDS:
            try:
                _check_copied(tokenizer, lead, word)
                usable.append(word)
            except UnusablePrompt as error:
                refusals.append(error)
        choices.append((usable, refusals, lead))
    usable, refusals, lead = max(choices, key=lambda choice: len(choice[0]))
    for refusal in refusals:
        skipped.add(refusal)
    return lead, usable


def _check_copied(tokenizer: Any, lead: str, word: str) -> None:
    """Refuse a word that is not one token, the same at the beginning of the text and after a space."""
    (tokens,) = tokenize(tokenizer, [f"{lead}{word} {word}"])
    first, again = len(lead), len(lead) + len(word) + 1
    positions = slot_positions(tokens, {"first": (first, again - 1), "again": (again, again + len(word))})
    if tokens.unknown is not None:
        raise UnusablePrompt("a word that the tokenizer does not know", word)
    if tokens.ids[positions["first"]] != tokens.ids[positions["again"]]:
        raise UnusablePrompt("a word that is another token after a space", word)
