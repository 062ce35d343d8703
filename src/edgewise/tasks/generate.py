"""Tasks made for a tokenizer: drafts are written until enough of them can be expressed."""

from collections import Counter
from functools import partial
from random import Random
from typing import Any

from edgewise.core.errors import EdgewiseError
from edgewise.models.registry import embedded_for
from edgewise.tasks import drafts
from edgewise.tasks.align import Refused, align, check_fast, encode, places
from edgewise.tasks.pairs import Metric, Pair, Task
from edgewise.tasks.wordings import COPY_WORDS

_DRAFTS = {
    "copy": drafts.copy,
    "ioi": drafts.ioi,
    "greater-than": drafts.greater_than,
    "docstring": drafts.docstring,
    "antonym": drafts.antonym,
}
TASKS = tuple(_DRAFTS)
FEWEST = 4
"""Pairs that a task must have, unless fewer were asked for."""
_PATIENCE = 2000  # drafts: if none of so many can be expressed, the next will not be either


class CannotExpress(EdgewiseError):
    """The tokenizer has no such prompts."""


def make_task(name: str, tokenizer: Any, n: int, seed: int = 0, context: int | None = None) -> Task:
    """`n` pairs with different clean prompts, or as many as there are. The seed decides everything.

    With an embedded model's tokenizer, only sentences that its training text does not contain are used.

    >>> make_task("ioi", edgewise.load_tokenizer("gpt2"), n=100)
    """
    if name not in TASKS:
        raise EdgewiseError(
            f"there is no task {name!r}; choose from {', '.join(TASKS)}, or give a .jsonl file"
        )
    if n < 1:
        raise EdgewiseError(f"a task has at least one pair, not {n}")
    check_fast(tokenizer)
    rng, skipped = Random(f"task {name} {seed}"), Skipped()
    draw = _DRAFTS[name]
    if name == "copy":
        draw = partial(drafts.copy, **_copy_words(tokenizer, skipped))
    if name == "greater-than" and _cuts_digits(tokenizer):
        draw = drafts.greater_than_by_digits
    model = embedded_for(tokenizer)
    pairs: dict[str, Pair] = {}
    for tried in range(max(50 * n, _PATIENCE)):
        if len(pairs) == n or (tried == _PATIENCE and not pairs):
            break
        draft = draw(rng)
        (clean, begins), (corrupt, also) = draft.write(corrupt=False), draft.write(corrupt=True)
        if clean in pairs or (model is not None and model.was_trained_on(draft.kind, draft.combination)):
            continue
        try:
            pairs[clean] = align(
                tokenizer,
                clean,
                corrupt,
                draft.answers,
                draft.wrong,
                longest(tokenizer, context),
                (begins, also),
            )
        except Refused as refused:
            skipped.add(refused)
    if len(pairs) < min(n, FEWEST):
        raise CannotExpress(_too_few(name, len(pairs), skipped))
    metric: Metric = "probability difference" if name == "greater-than" else "logit difference"
    return Task(name, metric, tuple(pairs.values()), skipped.reasons())


def longest(tokenizer: Any, context: int | None) -> int:
    """Tokens that a prompt may have."""
    return min(context or tokenizer.model_max_length, tokenizer.model_max_length)


class Skipped:
    """Counts what was refused, by reason; the first case stands for all."""

    def __init__(self):
        self.counts: Counter[str] = Counter()
        self.first: dict[str, Refused] = {}

    def add(self, refused: Refused) -> None:
        self.counts[refused.reason] += 1
        self.first.setdefault(refused.reason, refused)

    def reasons(self) -> dict[str, int]:
        return {str(self.first[reason]): count for reason, count in self.counts.most_common()}


def _too_few(name: str, found: int, skipped: Skipped) -> str:
    why = next(iter(skipped.reasons()), "no drafts")
    few = "" if not found else f"only {found} pairs can be, {FEWEST} are needed; the others have "
    return f"{name} cannot be expressed with this tokenizer: {few}{why}"


def _cuts_digits(tokenizer: Any) -> bool:
    """Whether each digit of a number is a token."""
    number = "1732"
    try:
        (found,) = encode(tokenizer, [f"from {number}"])
    except Refused:
        return False
    return [found.text[a:b].strip() for a, b in found.spans[-len(number) :]] == list(number)


def _copy_words(tokenizer: Any, skipped: Skipped) -> dict[str, Any]:
    """The words that can be copied, and whether the text has to begin with a space for that."""
    choices = []
    for lead in ("", " "):
        usable, refusals = [], []
        for word in COPY_WORDS:
            try:
                _check_copied(tokenizer, lead, word)
                usable.append(word)
            except Refused as refused:
                refusals.append(refused)
        choices.append((usable, refusals, lead))
    usable, refusals, lead = max(choices, key=lambda choice: len(choice[0]))
    for refused in refusals:
        skipped.add(refused)
    if len(usable) < 2 * drafts.PERIOD:
        raise CannotExpress(_too_few("copy", 0, skipped))
    return {"lead": lead, "words": usable}


def _check_copied(tokenizer: Any, lead: str, word: str) -> None:
    """A word has to be one token, and the same one at the beginning of the text and after a space."""
    (found,) = encode(tokenizer, [f"{lead}{word} {word}"])
    first, again = len(lead), len(lead) + len(word) + 1
    at = places(found, {"first": (first, again - 1), "again": (again, again + len(word))})
    if found.unknown is not None:
        raise Refused("a word that the tokenizer does not know", word)
    if found.ids[at["first"]] != found.ids[at["again"]]:
        raise Refused("a word that is another token after a space", word)
