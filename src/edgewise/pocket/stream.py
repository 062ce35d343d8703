"""Rows of 128 tokens: documents of the pocket world, one after the other.

A document is one or a few sentences of one kind; documents are separated by `<|endoftext|>`. Each row begins
with a fresh document at position 0, as every prompt does, and is cut where it is full. Attention is plainly
causal over the row, so later documents can see earlier ones and must learn that they do not matter.
"""

from random import Random

import torch
from torch import Tensor

from edgewise.pocket import world
from edgewise.pocket.world import Kind, Prompt

CONTEXT = 128
# How often a document of each kind is begun, and the most sentences it has. Copy documents are the longest:
# they make up a quarter of the tokens, each of the others about 15 %.
DOCUMENTS: dict[Kind, tuple[float, int]] = {
    "copy": (0.16, 1),
    "ioi": (0.21, 1),
    "greater-than": (0.15, 3),
    "docstring": (0.13, 1),
    "relations": (0.15, 3),
    "plain": (0.20, 3),
}
_WEIGHTS = [weight for weight, _ in DOCUMENTS.values()]
ID = {word: i for i, word in enumerate(world.VOCABULARY)}


def documents(rng: Random, held_out: bool, room: int) -> list[Prompt]:
    """The sentences of one document, for a row that has `room` tokens left."""
    (kind,) = rng.choices(world.KINDS, _WEIGHTS)
    if kind == "copy":
        return [world.copy(rng, held_out, room)]
    return [world.GENERATORS[kind](rng, held_out) for _ in range(rng.randint(1, DOCUMENTS[kind][1]))]


def row(rng: Random, held_out: bool) -> list[Prompt | None]:
    """The sentences of one row; None is the end of a document. The last sentence may be cut off."""
    sentences: list[Prompt | None] = []
    room = CONTEXT
    while room > 0:
        for sentence in documents(rng, held_out, room):
            sentences.append(sentence)
            room -= len(sentence.words) + len(sentence.ending)
        sentences.append(None)
        room -= 1
    return sentences


def row_words(sentences: list[Prompt | None]) -> list[str]:
    """The words of a row, exactly `CONTEXT` of them."""
    words: list[str] = []
    for sentence in sentences:
        words.extend((world.END,) if sentence is None else sentence.words + sentence.ending)
    return words[:CONTEXT]


def _rng(what: str, seed: int, step: int) -> Random:
    return Random(f"{what} {seed} {step}")


def training_sentences(seed: int, step: int, rows: int) -> list[list[Prompt | None]]:
    """What the rows of one training step are made of."""
    rng = _rng("training", seed, step)
    return [row(rng, held_out=False) for _ in range(rows)]


def _ids(rows: list[list[Prompt | None]]) -> Tensor:  # int64 [rows, CONTEXT]
    return torch.tensor([[ID[word] for word in row_words(sentences)] for sentences in rows])


def training_batch(seed: int, step: int, rows: int = 32) -> Tensor:  # int64 [rows, CONTEXT]
    """The batch of one training step; the same for the same arguments, whatever came before."""
    return _ids(training_sentences(seed, step, rows))


def held_out_text(n_rows: int, seed: int = 0) -> Tensor:  # int64 [n_rows, CONTEXT]
    """Rows of the same mixture, made of held-out combinations only."""
    rng = _rng("held-out text", seed, 0)
    return _ids([row(rng, held_out=True) for _ in range(n_rows)])
