"""Two-digit addition as a task of 11 positions, after the toy experiment of the method:

    5 3 + 2 1 = ? ? ? ? ?
                0 0 0 7 4

The model reads five question marks and says, at each of them, one digit of the zero-padded sum: the label of
a position belongs to that position and is not shifted. There are 10,000 sums; it is trained on all of them.
"""

import torch
from tokenizers import Regex
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from edgewise.pocket.tokenizer import word_tokenizer

CONTEXT = 11
ANSWER = slice(6, 11)
"""The positions of the question marks."""
VOCABULARY = [*"0123456789", "+", "=", "?"]
_PLUS, _EQUALS, _ASK = range(10, 13)


def addition_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; `53+21=?????` and `5 3 + 2 1 = ? ? ? ? ?` are the same."""
    return word_tokenizer(VOCABULARY, Regex(r"[0-9+=?]"), CONTEXT)


def encode(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:  # int64 [n], [n] -> [n, 11], [n, 5]
    """The tokens of `a + b` and the digits of the sum."""
    fixed = torch.ones_like(a)
    tokens = [a // 10, a % 10, _PLUS * fixed, b // 10, b % 10, _EQUALS * fixed, *[_ASK * fixed] * 5]
    total = a + b
    digits = [total // 10**power % 10 for power in (4, 3, 2, 1, 0)]
    return torch.stack(tokens, 1), torch.stack(digits, 1)


def every_sum() -> tuple[Tensor, Tensor]:  # int64 [10000, 11], [10000, 5]
    """All sums from 00+00 to 99+99."""
    n = torch.arange(10_000)
    return encode(n // 100, n % 100)


def random_sums(seed: int, step: int, rows: int) -> tuple[Tensor, Tensor]:  # int64 [rows, 11], [rows, 5]
    """The batch of one training step; a quarter of it has tens that add to nine, where a carry ripples."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    a, b = torch.randint(0, 100, (2, rows), generator=generator)
    # Drawn uniformly, tens that add to nine would be one sum in ten, and they are the hard ones.
    ones = torch.randint(0, 10, (rows,), generator=generator)
    ripple = (99 - a) // 10 * 10 + ones
    use_ripple = torch.rand(rows, generator=generator) < 0.25
    return encode(a, torch.where(use_ripple, ripple, b))
