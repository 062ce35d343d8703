"""Texts as tokens, with the span of each token in its text, for any fast tokenizer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from edgewise.core.errors import EdgewiseError

Span = tuple[int, int]
"""First character and the one after the last, of a word or a token in its text."""


_MAX_CASE = 300


class UnusablePrompt(Exception):
    """A text that a tokenizer cannot express as a task needs it: a reason, which many texts may share, and this case."""

    def __init__(self, reason: str, case: str):
        shown = case if len(case) <= _MAX_CASE else f"{case[:_MAX_CASE]} ..."
        super().__init__(f"{reason} ({shown})")
        self.reason = reason


class TokenizedText(NamedTuple):
    """A text as tokens, with special tokens that the tokenizer puts before it, without those that it puts after it."""

    text: str
    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    unknown: str | None
    """The first word for which the tokenizer has no token."""

    def token_texts(self, first: int = 0) -> str:
        """The tokens from number `first` on, quoted, for messages."""
        return ", ".join(repr(self.text[a:b]) for a, b in self.spans[first:])


def check_fast(tokenizer: Any) -> None:
    """Refuse a slow tokenizer: only fast ones return the spans of tokens."""
    if not getattr(tokenizer, "is_fast", False):
        raise EdgewiseError(
            f"{type(tokenizer).__name__} does not say where its tokens stand in the text; use the model's fast tokenizer"
        )


def max_tokens(tokenizer: Any, context: int | None) -> int:
    """Tokens that a prompt may have."""
    return min(context or tokenizer.model_max_length, tokenizer.model_max_length)


def tokenize(tokenizer: Any, texts: Sequence[str]) -> list[TokenizedText]:
    """Tokenize texts. A tokenizer with an unknown token notes unknown words; one without it refuses them."""
    try:
        encoding = tokenizer(
            list(texts), return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False
        )
    except Exception as error:  # a closed vocabulary, such as pocket's, raises a bare Exception
        words = {word: None for text in texts for word in text.split()}
        culprit = next((word for word in words if not _knows(tokenizer, word)), texts[0])
        raise UnusablePrompt("a word that the tokenizer does not know", culprit) from error
    return [
        _tokenized(text, ids, spans, special, tokenizer.unk_token_id)
        for text, ids, spans, special in zip(
            texts,
            encoding["input_ids"],
            encoding["offset_mapping"],
            encoding["special_tokens_mask"],
            strict=True,
        )
    ]


def _knows(tokenizer: Any, word: str) -> bool:
    try:
        tokenizer(word)
    except Exception:
        return False
    return True


def _tokenized(
    text: str, ids: list[int], spans: list[Span], special: list[int], unknown_id: int | None
) -> TokenizedText:
    end = len(ids)
    while end and special[end - 1]:  # an end token would stand between the prompt and its answer
        end -= 1
    unknown = next(
        (text[a:b] for i, (a, b) in enumerate(spans[:end]) if ids[i] == unknown_id and not special[i]), None
    )
    return TokenizedText(text, tuple(ids[:end]), tuple(spans[:end]), unknown)
