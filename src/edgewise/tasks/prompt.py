"""One prompt of a user's, tokenized for a model."""

from typing import Any, NamedTuple

from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.tasks.tokenization import TokenizedText, UnusablePrompt, check_fast, tokenize


class EncodedPrompt(NamedTuple):
    """A prompt's tokens."""

    ids: list[int]
    tokens: list[str]
    """As text."""


def encode_prompt(
    model: PreTrainedModel, name: str, tokenizer: Any, text: str, max_tokens: int | None = None
) -> EncodedPrompt:
    """Tokenize a prompt; refuse words that the tokenizer does not know, and more tokens than the model's context or
    `max_tokens`."""
    prompt = tokenize_prompt(tokenizer, text)
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limit = min((x for x in (context, max_tokens) if x is not None), default=len(prompt.ids))
    if not 1 <= len(prompt.ids) <= limit:
        raise EdgewiseError(f"the prompt has {len(prompt.ids)} tokens; give {name} one of 1 to {limit}")
    decoded = [tokenizer.decode([i]) for i in prompt.ids]
    # a character that is cut into several tokens is shown at each of them
    tokens = [
        text[a:b] if "�" in token else token for token, (a, b) in zip(decoded, prompt.spans, strict=True)
    ]
    return EncodedPrompt(list(prompt.ids), tokens)


def tokenize_prompt(tokenizer: Any, text: str) -> TokenizedText:
    """Tokenize a prompt; refuse words that the tokenizer does not know."""
    check_fast(tokenizer)
    try:
        (prompt,) = tokenize(tokenizer, [text])
    except UnusablePrompt as error:
        raise EdgewiseError(f"the prompt cannot be read: {error}") from error
    if prompt.unknown is not None:
        raise EdgewiseError(f"the prompt has a word that the tokenizer does not know: {prompt.unknown}")
    return prompt
