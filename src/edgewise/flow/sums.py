"""Prompts of a model that adds: the sum 53+21 is read as 53+21=?????, and answered at the question marks."""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError

EXAMPLES = ("53+21", "36+28", "43+59")
"""No carry, one carry, two carries."""
ANSWER = "?"
"""Token at which the model says a digit of the sum."""
_VOCABULARY = {*"0123456789+=", ANSWER}
_SUM = re.compile(r"\s*(\d\s*\d)\s*\+\s*(\d\s*\d)\s*=?[\s?]*")


def is_addition(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer knows digits and signs of a sum, and nothing else."""
    return tokenizer.get_vocab().keys() == _VOCABULARY


def addition_texts(sums: Sequence[str]) -> dict[str, str]:
    """The text that the model reads for each sum, by the sum as it is shown."""
    texts = {}
    for written in sums:
        match = _SUM.fullmatch(written)
        if not match:
            raise EdgewiseError(f"an addition model reads sums of two-digit numbers, 53+21=, not {written!r}")
        shown = f"{match[1]}+{match[2]}".replace(" ", "")
        texts[shown] = f"{shown}={5 * ANSWER}"
    return texts
