"""Open data for training and evaluation, and hold some of it out of training."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from edgewise.core.errors import EdgewiseError
from edgewise.data.batch import Batch, Data
from edgewise.data.packing import Encoder, PackedSequences, Processes, fill, pack
from edgewise.data.sections import Corpus, Split, digest
from edgewise.data.source import find_sources, source_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHARACTERS_PER_TOKEN = 4  # an estimate
# (contexts of a section at most, one section in how many is held out). The first is for all but tiny data; the others are
# tried in turn where it leaves one side without a sequence.
SPLITS = ((16, 20), (4, 10), (1, 5), (1, 2))
HELD_OUT_TOKENS = 65_536


def open_data(
    data: Any,
    tokenizer: "PreTrainedTokenizerBase",
    context: int,
    seed: int,
    *,
    valid: Any = None,
    held_out_tokens: int = HELD_OUT_TOKENS,
    processes: Processes | None = None,
) -> Data:
    """Open data to train on, with text held out of it.

    Args:
        data: A file, a folder, a dataset's name, a dataset object or a list of these; see `edgewise.data`.
        tokenizer: The model's.
        context: Tokens of a sequence.
        seed: Determines the order of training sequences, and nothing else.
        valid: Data to hold out; training leaves out what is in it word for word. Without it, one section in twenty of
            `data` is held out, chosen by its text.
        held_out_tokens: How much to evaluate on, at most.
        processes: Those that train together, each of which calls this, if there are several.
    """
    text = _open(data, tokenizer, context, processes)
    n = max(1, held_out_tokens // context)
    split, held_out = (
        _choose_split(text, n)
        if valid is None
        else _split_by(text, _open(valid, tokenizer, context, processes), n)
    )
    return Data(PackedSequences(text.corpus.shuffled(split, seed), text.encode, context), held_out)


def held_out_only(data: Any, tokenizer: "PreTrainedTokenizerBase", context: int, *, tokens: int) -> Batch:
    """The first sequences of `data`, about `tokens` tokens, to evaluate a model on."""
    text = _open(data, tokenizer, context)
    batch = text.first_sequences(text.corpus.sections(text.longest_section), max(1, tokens // context))
    if batch is None:
        raise _too_small(text)
    return batch


class _Text(NamedTuple):
    """Data that has been opened for a tokenizer and a context."""

    corpus: Corpus
    encode: Encoder
    context: int

    @property
    def longest_section(self) -> int:
        return self.characters(SPLITS[0][0])

    def characters(self, contexts: int) -> int:
        """Characters of so many sequences, about."""
        return contexts * self.context * CHARACTERS_PER_TOKEN

    def first_sequences(self, sections: Iterable[str], n: int) -> Batch | None:
        """At most `n` sequences of the sections, or None if they do not fill one."""
        filled = fill(enumerate(self.encode(sections)), self.context, start=self.encode.start)
        sequences = [segments for segments, _ in islice(filled, n)]
        return pack(sequences) if sequences else None

    def is_trainable(self, split: Split) -> bool:
        """Whether what is not held out fills a sequence."""
        sections = (section for section in self.corpus.sections(split.limit) if not split.holds_out(section))
        return self.first_sequences(sections, 1) is not None


def _open(
    data: Any, tokenizer: "PreTrainedTokenizerBase", context: int, processes: Processes | None = None
) -> _Text:
    corpus = Corpus(source_name(data), find_sources(data))
    return _Text(corpus, Encoder(tokenizer, corpus.name, processes), context)


def _choose_split(text: _Text, n: int) -> tuple[Split, Batch]:
    """A split by digest that leaves a sequence on either side, and `n` held-out sequences."""
    for contexts, one_in in SPLITS:
        split = Split(text.characters(contexts), one_in)
        sections = (section for section in text.corpus.sections(split.limit) if split.holds_out(section))
        held_out = text.first_sequences(sections, n)
        if held_out is not None and text.is_trainable(split):
            return split, held_out
    raise _too_small(text)


def _split_by(text: _Text, valid: _Text, n: int) -> tuple[Split, Batch]:
    """A split that holds out all of `valid`, also where it has more than `n` sequences, and `n` sequences of it."""
    limit = text.longest_section
    held_out = valid.first_sequences(valid.corpus.sections(limit), n)
    if held_out is None:
        raise _too_small(valid)
    split = Split(limit, among=frozenset(map(digest, valid.corpus.sections(limit))))
    if not text.is_trainable(split):
        if not text.is_trainable(Split(limit)):
            raise _too_small(text)
        raise EdgewiseError(
            f"nothing is left of {text.corpus.name} to train on: it is in the held-out {valid.corpus.name} too; "
            "give other text"
        )
    return split, held_out


def _too_small(text: _Text) -> EdgewiseError:
    name, context = text.corpus.name, text.context
    tokens = sum(map(len, text.encode(text.corpus.sections(text.longest_section))))
    if tokens == 0:
        return EdgewiseError(f"{name} is empty: there is no text in it")
    if tokens < context:
        return EdgewiseError(
            f"{name} holds only {tokens} tokens, not one sequence of {context}: give more text or a smaller `context`"
        )
    return EdgewiseError(
        f"{name} holds {tokens} tokens, too few or too much alike to train on sequences of {context} and hold out others:"
        " give more text, a smaller `context`, or other text as `valid`"
    )
