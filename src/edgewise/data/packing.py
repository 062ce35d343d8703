"""Pack documents into sequences of exactly `context` tokens, one document after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.data.batch import IGNORE, Batch

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

DocumentId = TypeVar("DocumentId")
TOKENIZER_BATCH = 16
"""Sections tokenized together: enough for a fast tokenizer's threads, few enough not to make a step wait."""


def fill(
    documents: Iterable[tuple[DocumentId, list[int]]],
    context: int,
    used: int = 0,
    start: Sequence[int] = (),
) -> Iterator[tuple[list[list[int]], tuple[DocumentId, int]]]:
    """Fill sequences with documents; what does not fill a sequence in the end is left out.

    Args:
        documents: (id, tokens) of each.
        context: Tokens of a sequence.
        used: Tokens of the first document that earlier sequences have had.
        start: Tokens with which every segment begins.

    Yields:
        The segments of documents in a sequence, and where it ends: in which document, after how many of its tokens.
    """
    segments, room = [], context
    start = start if len(start) < context else ()
    for document, tokens in documents:
        offset, used = used, 0
        while offset < len(tokens):
            segment = [*start, *tokens[offset : offset + max(0, room - len(start))]][:room]
            segments.append(segment)
            offset, room = offset + max(0, len(segment) - len(start)), room - len(segment)
            if room == 0:
                yield segments, (document, offset)
                segments, room = [], context


def pack(sequences: list[list[list[int]]]) -> Batch:  # sequences x segments x tokens
    """A batch in which each segment is a document: its positions begin at 0, and its last token has no target."""
    return Batch(
        ids=torch.tensor([[token for segment in segments for token in segment] for segments in sequences]),
        targets=torch.tensor(
            [[token for segment in segments for token in [*segment[1:], IGNORE]] for segments in sequences]
        ),
        positions=torch.tensor(
            [[position for segment in segments for position in range(len(segment))] for segments in sequences]
        ),
    )


class Processes:
    """Processes that read the same text together: each tokenizes its share, and all of them get all tokens."""

    def __init__(
        self, index: int = 0, count: int = 1, gather: Callable[[Any], list[Any]] = lambda own: [own]
    ):
        """`gather`: what each process gives, in their order; called by all of them."""
        self.index, self.count, self.gather = index, count, gather

    def separate(self) -> None:
        """From now on this process reads by itself."""
        self.__init__()


class Encoder:
    """Tokenizes texts, with the end-of-text token after each if the tokenizer has one."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", name: str, processes: Processes | None = None):
        self.tokenizer, self.name, self.processes = tokenizer, name, processes or Processes()
        self.start = _start_tokens(tokenizer)
        """What the tokenizer puts before a text (`<s>` for Llama, nothing for GPT-2): a model that has always read it
        predicts badly without it."""
        self.end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def __call__(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """The tokens of each text; none where the tokenizer finds nothing in it."""
        texts, processes = iter(texts), self.processes
        while together := list(islice(texts, TOKENIZER_BATCH * processes.count)):
            shares = processes.gather(self._tokenize(together[processes.index :: processes.count]))
            for share in shares:
                if isinstance(share, str):  # in all processes, or the others would wait
                    raise EdgewiseError(f"the model's tokenizer cannot read {self.name}: {share}")
            for number in range(len(together)):
                tokens = shares[number % processes.count][number // processes.count]
                yield tokens + self.end if tokens else []

    def _tokenize(self, texts: list[str]) -> list[list[int]] | str:
        """The tokens of each text, or why there are none."""
        if not texts:
            return []
        try:
            return self.tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
        except Exception as error:  # tokenizers raises nothing more specific
            return first_line(error)


def _start_tokens(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    bare, special = (tokenizer("a", add_special_tokens=add).input_ids for add in (False, True))
    return next((special[:i] for i in range(len(special)) if bare and special[i : i + len(bare)] == bare), [])


class PackedSequences:
    """Endless sequences of a shuffled dataset of sections; each epoch has its own order, and begins where the last ended."""

    def __init__(self, sections: "datasets.IterableDataset", encode: Encoder, context: int):
        self.sections, self.encode, self.context, self.name = sections, encode, context, encode.name
        self.load_state_dict({"epoch": 0, "section": 0, "offset": 0})

    def take(self, n: int) -> Batch:
        """The next `n` sequences."""
        sequences, ends = zip(*islice(self._sequences, n), strict=True)
        self._end = ends[-1]
        return pack(list(sequences))

    def state_dict(self) -> dict[str, Any]:
        """Where the last sequence taken ended."""
        (epoch, section), offset = self._end
        return {"epoch": epoch, "section": section, "offset": offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the sequence that ended there."""
        self._end = (state["epoch"], state["section"]), state["offset"]
        self._sequences = fill(self._documents(*self._end[0]), self.context, self._end[1], self.encode.start)

    def _documents(self, epoch: int, section: int) -> Iterator[tuple[tuple[int, int], list[int]]]:
        """Documents from this section of this epoch on. Earlier ones are read for the shuffling, but not tokenized."""
        while True:
            self.sections.set_epoch(epoch)
            texts = islice((record["text"] for record in self.sections), section, None)
            for number, tokens in enumerate(self.encode(texts), section):
                yield (epoch, number), tokens
            epoch, section = epoch + 1, 0
