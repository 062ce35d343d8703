"""From texts to token ids that are aligned position by position, for any fast tokenizer; or the reason why not."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from edgewise.core.errors import EdgewiseError
from edgewise.tasks.pairs import Pair

Span = tuple[int, int]
"""Where a word begins and ends in its text."""


class Refused(Exception):
    """What a tokenizer cannot express: a reason that many texts may share, and the case at hand."""

    def __init__(self, reason: str, case: str):
        super().__init__(f"{reason} ({case})")
        self.reason = reason


class Tokens(NamedTuple):
    """A text as the model reads it, with what the tokenizer puts before it (but not after it)."""

    text: str
    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    unknown: str | None
    """A word for which the tokenizer has no token."""

    def pieces(self, first: int = 0) -> str:
        return ", ".join(repr(self.text[a:b]) for a, b in self.spans[first:])


def check_fast(tokenizer: Any) -> None:
    """Only fast tokenizers say where in the text a token stands."""
    if not getattr(tokenizer, "is_fast", False):
        raise EdgewiseError(
            f"{type(tokenizer).__name__} does not say where its tokens stand in the text; use the model's fast tokenizer"
        )


def encode(tokenizer: Any, texts: Sequence[str]) -> list[Tokens]:
    """Texts as tokens. An unknown word is refused where the tokenizer cannot go on, and noted where it can."""
    try:
        found = tokenizer(
            list(texts), return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False
        )
    except Exception as error:  # a closed vocabulary, such as the pocket one, raises a bare Exception
        words = {word: None for text in texts for word in text.split()}
        culprit = next((word for word in words if not _knows(tokenizer, word)), texts[0])
        raise Refused("a word that the tokenizer does not know", culprit) from error
    return [
        _tokens(text, ids, spans, special, tokenizer.unk_token_id)
        for text, ids, spans, special in zip(
            texts, found["input_ids"], found["offset_mapping"], found["special_tokens_mask"], strict=True
        )
    ]


def _knows(tokenizer: Any, word: str) -> bool:
    try:
        tokenizer(word)
    except Exception:
        return False
    return True


def _tokens(text: str, ids: list[int], spans: list[Span], special: list[int], unknown: int | None) -> Tokens:
    end = len(ids)
    while end and special[end - 1]:  # an end token would stand between the prompt and its answer
        end -= 1
    word = next(
        (text[a:b] for i, (a, b) in enumerate(spans[:end]) if ids[i] == unknown and not special[i]), None
    )
    return Tokens(text, tuple(ids[:end]), tuple(spans[:end]), word)


def align(
    tokenizer: Any,
    clean: str,
    corrupt: str,
    answers: Sequence[str],
    wrong: Sequence[str],
    context: int,
    slots: tuple[dict[str, Span], dict[str, Span]] | None = None,
) -> Pair:
    """A pair, if the tokenizer can express it: prompts of one length, answers of one token.

    With `slots`, each named place holds one token in both prompts, and they differ nowhere else. Answers that are not one
    token are left out; one must remain on each side.
    """
    both = encode(tokenizer, [clean, corrupt])
    for prompt in both:
        if prompt.unknown is not None:
            raise Refused("a word that the tokenizer does not know", prompt.unknown)
        if len(prompt.ids) > context:
            raise Refused("longer than the context", f"{len(prompt.ids)} tokens, context {context}")
    first, second = both
    positions, others = map(places, both, slots or ({}, {}))
    if len(first.ids) != len(second.ids):
        raise Refused("clean and corrupt differ in length", f"{len(first.ids)} and {len(second.ids)} tokens")
    differing = {i for i, (a, b) in enumerate(zip(first.ids, second.ids, strict=True)) if a != b}
    if not differing:
        raise Refused("clean and corrupt are the same", f"{len(first.ids)} tokens")
    if positions != others or (slots and not differing <= set(positions.values())):
        raise Refused("clean and corrupt are cut into different tokens", first.pieces())
    right_ids, wrong_ids = _next_ids(tokenizer, first, answers), _next_ids(tokenizer, first, wrong)
    if right_ids.keys() & wrong_ids.keys():
        raise Refused("answer and wrong are the same token", repr(answers[0]))
    return Pair(
        clean=clean,
        corrupt=corrupt,
        answers=tuple(right_ids.values()),
        wrong=tuple(wrong_ids.values()),
        clean_ids=first.ids,
        corrupt_ids=second.ids,
        answer_ids=tuple(right_ids),
        wrong_ids=tuple(wrong_ids),
        positions={**positions, "end": len(first.ids) - 1},
    )


def places(prompt: Tokens, named: dict[str, Span]) -> dict[str, int]:
    """The one token at each named place."""
    found = {}
    for name, (begin, end) in named.items():
        inside = [i for i, (a, b) in enumerate(prompt.spans) if a < end and b > begin]
        word, pieces = prompt.text[begin:end], [prompt.text[slice(*prompt.spans[i])] for i in inside]
        if len(inside) > 1:
            whole = "".join(pieces).strip()
            raise Refused("a word of several tokens", f"{whole} is {', '.join(map(str.strip, pieces))}")
        if not inside or pieces[0].strip() != word:
            raise Refused("a word that shares its token with others", f"{word} in {pieces}")
        found[name] = inside[0]
    return found


def _next_ids(tokenizer: Any, prompt: Tokens, answers: Sequence[str]) -> dict[int, str]:
    """The answers that are exactly one more token, by its id. The first refusal, if there is none."""
    found: dict[int, str] = {}
    refusals = []
    for answer, longer in zip(
        answers, encode(tokenizer, [prompt.text + answer for answer in answers]), strict=True
    ):
        n = len(prompt.ids)
        if longer.unknown is not None:
            refusals.append(Refused("an answer that the tokenizer does not know", repr(answer)))
        elif longer.ids[:n] != prompt.ids or len(longer.ids) == n:
            end = re.split(r"(?<=\S)(?=\s)", prompt.text)[-1]
            refusals.append(
                Refused("an answer that shares its token with the prompt", f"{answer!r} after {end!r}")
            )
        elif len(longer.ids) > n + 1:
            refusals.append(Refused("an answer of several tokens", f"{answer!r} is {longer.pieces(n)}"))
        else:
            found[longer.ids[-1]] = answer
    if not found:
        raise refusals[0]
    return found
