"""One prompt of a user's, as a model reads it."""

from typing import Any, NamedTuple

from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.tasks.align import Refused, Tokens, check_fast, encode


class ReadPrompt(NamedTuple):
    """Token by token."""

    ids: list[int]
    tokens: list[str]


def read_prompt(
    model: PreTrainedModel, name: str, tokenizer: Any, text: str, longest: int | None = None
) -> ReadPrompt:
    """Encode a prompt, refusing what the tokenizer cannot say and what is longer than the model's context, or `longest`."""
    read = tokens_of(tokenizer, text)
    own = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    most = min((x for x in (own, longest) if x is not None), default=len(read.ids))
    if not 1 <= len(read.ids) <= most:
        raise EdgewiseError(f"the prompt has {len(read.ids)} tokens; give {name} one of 1 to {most}")
    words = [tokenizer.decode([i]) for i in read.ids]
    # a character in several tokens is shown whole at each of them
    tokens = [text[a:b] if "�" in word else word for word, (a, b) in zip(words, read.spans, strict=True)]
    return ReadPrompt(list(read.ids), tokens)


def tokens_of(tokenizer: Any, text: str) -> Tokens:
    """Encode a prompt that the tokenizer has all words for."""
    check_fast(tokenizer)
    try:
        (read,) = encode(tokenizer, [text])
    except Refused as refused:
        raise EdgewiseError(f"the prompt cannot be read: {refused}") from refused
    if read.unknown is not None:
        raise EdgewiseError(f"the prompt has a word that the tokenizer does not know: {read.unknown}")
    return read
