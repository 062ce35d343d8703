"""Rows of exactly `context` tokens, filled with documents one after the other."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.data.batch import IGNORE, Batch

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

Place = TypeVar("Place")
TOKENIZED_TOGETHER = 16
"""Sections: enough for a fast tokenizer's threads, few enough not to make a step wait."""


def fill(
    documents: Iterable[tuple[Place, list[int]]], context: int, used: int = 0, start: Sequence[int] = ()
) -> Iterator[tuple[list[list[int]], tuple[Place, int]]]:
    """Full rows, each as the pieces of documents in it, and where it ends: in which document, after how many tokens.

    Every piece begins with `start`. `used` tokens of the first document have been in earlier rows. What does not fill a row
    in the end is left out.
    """
    row, room = [], context
    start = start if len(start) < context else ()
    for place, tokens in documents:
        at, used = used, 0
        while at < len(tokens):
            piece = [*start, *tokens[at : at + max(0, room - len(start))]][:room]
            row.append(piece)
            at, room = at + max(0, len(piece) - len(start)), room - len(piece)
            if room == 0:
                yield row, (place, at)
                row, room = [], context


def pack(rows: list[list[list[int]]]) -> Batch:  # rows x pieces x tokens
    """Each piece is a document of its own: its positions begin at 0, and nothing is asked of its last token."""
    return Batch(
        ids=torch.tensor([[token for piece in row for token in piece] for row in rows]),
        targets=torch.tensor([[token for piece in row for token in [*piece[1:], IGNORE]] for row in rows]),
        positions=torch.tensor(
            [[position for piece in row for position in range(len(piece))] for row in rows]
        ),
    )


class Encoder:
    """Texts to tokens, with the end-of-text token after each if the tokenizer has one."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", name: str):
        self.tokenizer, self.name = tokenizer, name
        self.start = _start(tokenizer)
        """What the tokenizer itself puts before a text (`<s>` for Llama, nothing for GPT-2). A model that has always seen it
        makes no sense of a row without it."""
        self.end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def __call__(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """One list per text; empty where the tokenizer finds nothing in it."""
        texts = iter(texts)
        while together := list(islice(texts, TOKENIZED_TOGETHER)):
            try:
                found = self.tokenizer(together, add_special_tokens=False, verbose=False).input_ids
            except Exception as error:  # tokenizers raises nothing more specific
                raise EdgewiseError(
                    f"the model's tokenizer cannot read {self.name}: {first_line(error)}"
                ) from error
            for tokens in found:
                yield tokens + self.end if tokens else []


def _start(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    bare, whole = (tokenizer("a", add_special_tokens=special).input_ids for special in (False, True))
    return next((whole[:i] for i in range(len(whole)) if bare and whole[i : i + len(bare)] == bare), [])


class PackedRows:
    """Endless rows of a shuffled dataset of sections; each epoch has its own order, and begins where the last one ended."""

    def __init__(self, sections: "datasets.IterableDataset", encode: Encoder, context: int):
        self.sections, self.encode, self.context, self.name = sections, encode, context, encode.name
        self.load_state_dict({"epoch": 0, "section": 0, "offset": 0})

    def _documents(self, epoch: int, section: int) -> Iterator[tuple[tuple[int, int], list[int]]]:
        """From this section of this epoch on. Those before it are read again, for the shuffling, but not tokenized."""
        while True:
            self.sections.set_epoch(epoch)
            texts = islice((record["text"] for record in self.sections), section, None)
            for number, tokens in enumerate(self.encode(texts), section):
                yield (epoch, number), tokens
            epoch, section = epoch + 1, 0

    def take(self, n: int) -> Batch:
        rows, ends = zip(*islice(self._rows, n), strict=True)
        self._end = ends[-1]
        return pack(list(rows))

    def state_dict(self) -> dict[str, Any]:
        (epoch, section), offset = self._end
        return {"epoch": epoch, "section": section, "offset": offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._end = (state["epoch"], state["section"]), state["offset"]
        self._rows = fill(self._documents(*self._end[0]), self.context, self._end[1], self.encode.start)
