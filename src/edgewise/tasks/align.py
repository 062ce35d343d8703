"""Pairs of prompts whose tokens are aligned position by position; or the reason why a tokenizer cannot express them."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from edgewise.tasks.pairs import Pair
from edgewise.tasks.tokenization import Span, TokenizedText, UnusablePrompt, tokenize

Slots = dict[str, Span]
"""Spans of named words in a prompt."""


class PairTexts(NamedTuple):
    """The texts of a pair, before they are tokenized."""

    clean: str
    corrupt: str
    answers: Sequence[str]
    wrong: Sequence[str]
    slots: tuple[Slots, Slots] | None = None
    """Of the clean and of the corrupt prompt: each slot must hold one token, and the prompts may differ nowhere else."""


def align(tokenizer: Any, texts: PairTexts, context: int) -> Pair:
    """Tokenize a pair, or refuse it: prompts must have the same length of at most `context` tokens, answers one token.

    Answers of several tokens are left out; one must remain on each side.
    """
    clean, corrupt = _tokenize_prompts(tokenizer, texts, context)
    positions, corrupt_positions = map(slot_positions, (clean, corrupt), texts.slots or ({}, {}))
    if len(clean.ids) != len(corrupt.ids):
        raise UnusablePrompt(
            "clean and corrupt differ in length", f"{len(clean.ids)} and {len(corrupt.ids)} tokens"
        )
    differing = {i for i, (a, b) in enumerate(zip(clean.ids, corrupt.ids, strict=True)) if a != b}
    if not differing:
        raise UnusablePrompt("clean and corrupt are the same", f"{len(clean.ids)} tokens")
    if positions != corrupt_positions or (texts.slots and not differing <= set(positions.values())):
        raise UnusablePrompt("clean and corrupt are cut into different tokens", clean.token_texts())
    answers, wrong = (_next_tokens(tokenizer, clean, side) for side in (texts.answers, texts.wrong))
    if answers.keys() & wrong.keys():
        raise UnusablePrompt("answer and wrong are the same token", repr(texts.answers[0]))
    return Pair(
        clean=texts.clean,
        corrupt=texts.corrupt,
        answers=tuple(answers.values()),
        wrong=tuple(wrong.values()),
        clean_ids=clean.ids,
        corrupt_ids=corrupt.ids,
        answer_ids=tuple(answers),
        wrong_ids=tuple(wrong),
        positions={**positions, "end": len(clean.ids) - 1},
    )


def _tokenize_prompts(tokenizer: Any, texts: PairTexts, context: int) -> list[TokenizedText]:
    prompts = tokenize(tokenizer, [texts.clean, texts.corrupt])
    for prompt in prompts:
        if prompt.unknown is not None:
            raise UnusablePrompt("a word that the tokenizer does not know", prompt.unknown)
        if len(prompt.ids) > context:
            raise UnusablePrompt("longer than the context", f"{len(prompt.ids)} tokens, context {context}")
    return prompts


def slot_positions(prompt: TokenizedText, slots: Slots) -> dict[str, int]:
    """The position of the one token in each slot."""
    positions = {}
    for name, (begin, end) in slots.items():
        inside = [i for i, (a, b) in enumerate(prompt.spans) if a < end and b > begin]
        word, tokens = prompt.text[begin:end], [prompt.text[slice(*prompt.spans[i])] for i in inside]
        if len(inside) > 1:
            joined = "".join(tokens).strip()
            raise UnusablePrompt(
                "a word of several tokens", f"{joined} is {', '.join(map(str.strip, tokens))}"
            )
        if not inside or tokens[0].strip() != word:
            raise UnusablePrompt("a word that shares its token with others", f"{word} in {tokens}")
        positions[name] = inside[0]
    return positions


def _next_tokens(tokenizer: Any, prompt: TokenizedText, answers: Sequence[str]) -> dict[int, str]:
    """The answers that are exactly one more token, by its id; if there are none, the first refusal is raised."""
    usable: dict[int, str] = {}
    refusals, n = [], len(prompt.ids)
    longer_texts = tokenize(tokenizer, [prompt.text + answer for answer in answers])
    for answer, longer in zip(answers, longer_texts, strict=True):
        if longer.unknown is not None:
            refusals.append(UnusablePrompt("an answer that the tokenizer does not know", repr(answer)))
        elif longer.ids[:n] != prompt.ids or len(longer.ids) == n:
            end = re.split(r"(?<=\S)(?=\s)", prompt.text)[-1]
            case = f"{answer!r} after {end!r}"
            refusals.append(UnusablePrompt("an answer that shares its token with the prompt", case))
        elif len(longer.ids) > n + 1:
            case = f"{answer!r} is {longer.token_texts(n)}"
            refusals.append(UnusablePrompt("an answer of several tokens", case))
        else:
            usable[longer.ids[-1]] = answer
    if not usable:
        raise refusals[0]
    return usable
