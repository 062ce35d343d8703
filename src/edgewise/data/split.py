"""What of some data is trained on, and what is held out."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from edgewise.core.errors import EdgewiseError
from edgewise.data.batch import Batch, Data
from edgewise.data.packing import Encoder, PackedRows, fill, pack
from edgewise.data.sections import Corpus, Split, digest
from edgewise.data.source import find, name_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHARACTERS_PER_TOKEN = 4  # an estimate
# The most contexts of a section, and one section in how many is held out. The first is for all but tiny data; the others
# are tried in turn where it leaves not one row on both sides.
SPLITS = ((16, 20), (4, 10), (1, 5), (1, 2))
LONGEST = SPLITS[0][0]
HELD_OUT_TOKENS = 65_536


def open_data(
    data: Any,
    tokenizer: "PreTrainedTokenizerBase",
    context: int,
    seed: int,
    *,
    valid: Any = None,
    held_out_tokens: int = HELD_OUT_TOKENS,
) -> Data:
    """Rows of `data` to train on, in an order given by the seed, and about `held_out_tokens` that are never trained on.

    Held out is either `valid`, and training leaves out what is in there word for word; or, without it, one section in
    twenty, chosen by its text whatever the seed.
    """
    corpus, encode = _open(data, tokenizer)
    rows = max(1, held_out_tokens // context)
    if valid is None:
        split, held_out = _choose(corpus, encode, context, rows)
    else:
        split, held_out = _given(corpus, encode, context, rows, *_open(valid, tokenizer))
    return Data(PackedRows(corpus.shuffled(split, seed), encode, context), held_out)


def held_out_only(data: Any, tokenizer: "PreTrainedTokenizerBase", context: int, *, tokens: int) -> Batch:
    """The first rows of all there is in `data`, to measure a model on."""
    corpus, encode = _open(data, tokenizer)
    limit = _characters(LONGEST, context)
    batch = _first_rows(corpus.sections(limit), encode, context, max(1, tokens // context))
    if batch is None:
        raise _too_small(corpus, encode, context)
    return batch


def _open(data: Any, tokenizer: "PreTrainedTokenizerBase") -> tuple[Corpus, Encoder]:
    corpus = Corpus(name_of(data), find(data))
    return corpus, Encoder(tokenizer, corpus.name)


def _characters(contexts: int, context: int) -> int:
    return contexts * context * CHARACTERS_PER_TOKEN


def _first_rows(sections: Iterable[str], encode: Encoder, context: int, rows: int) -> Batch | None:
    """At most so many rows, or None if there is not one."""
    filled = [row for row, _ in islice(fill(enumerate(encode(sections)), context, start=encode.start), rows)]
    return pack(filled) if filled else None


def _choose(corpus: Corpus, encode: Encoder, context: int, rows: int) -> tuple[Split, Batch]:
    """A split by digest, with a row at least on either side."""
    for contexts, one_in in SPLITS:
        split = Split(_characters(contexts, context), one_in)
        sections = (section for section in corpus.sections(split.limit) if split.holds_out(section))
        held_out = _first_rows(sections, encode, context, rows)
        if held_out is not None and _trainable(corpus, split, encode, context):
            return split, held_out
    raise _too_small(corpus, encode, context)


def _given(
    corpus: Corpus, encode: Encoder, context: int, rows: int, valid: Corpus, encode_valid: Encoder
) -> tuple[Split, Batch]:
    """A split that holds out what is in `valid`: all of it, also where it has more than the rows that are measured on."""
    limit = _characters(LONGEST, context)
    held_out = _first_rows(valid.sections(limit), encode_valid, context, rows)
    if held_out is None:
        raise _too_small(valid, encode_valid, context)
    split = Split(limit, among=frozenset(map(digest, valid.sections(limit))))
    if not _trainable(corpus, split, encode, context):
        if not _trainable(corpus, Split(limit), encode, context):
            raise _too_small(corpus, encode, context)
        raise EdgewiseError(
            f"nothing is left of {corpus.name} to train on: it is in the held-out {valid.name} too; give other text"
        )
    return split, held_out


def _trainable(corpus: Corpus, split: Split, encode: Encoder, context: int) -> bool:
    """Whether there is a row to train on."""
    sections = (section for section in corpus.sections(split.limit) if not split.holds_out(section))
    return _first_rows(sections, encode, context, 1) is not None


def _too_small(corpus: Corpus, encode: Encoder, context: int) -> EdgewiseError:
    tokens = sum(map(len, encode(corpus.sections(_characters(LONGEST, context)))))
    if tokens == 0:
        return EdgewiseError(f"{corpus.name} is empty: there is no text in it")
    if tokens < context:
        return EdgewiseError(
            f"{corpus.name} holds only {tokens} tokens, not one row of {context}: give more text or a smaller --context"
        )
    return EdgewiseError(
        f"{corpus.name} holds {tokens} tokens, too few or too much alike to train on rows of {context} and hold out others:"
        " give more text, a smaller --context, or other text as --valid"
    )
