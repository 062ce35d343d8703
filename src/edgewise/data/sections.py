"""Documents and sections of long ones. A section is the unit that is shuffled, and either trained on or held out."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.core.errors import EdgewiseError
from edgewise.data.source import Source

if TYPE_CHECKING:
    import datasets

# Between documents, usually on a line of its own. Where there is none, a file is one document.
SEPARATOR = re.compile(r"\n?<\|endoftext\|>\n?")
# Sections mixed at a time, at most 64 characters per token of context each: about 130 MB of text at a context of 1,024.
SHUFFLE_BUFFER = 2048


def cut(text: str, limit: int) -> Iterator[str]:
    """Cut a text into sections of at most `limit` characters, before white space if there is any."""
    start = 0
    while len(text) - start > limit:
        space = max(text.rfind(mark, start + 1, start + limit + 1) for mark in " \n\t")
        stop = space if space > start else start + limit
        yield text[start:stop]
        start = stop
    yield text[start:]


def split_documents(chunks: Iterable[str], limit: int) -> Iterator[str]:
    """Split a text that is read in chunks at its separators, and cut its documents into sections."""
    rest = ""
    for chunk in chunks:
        *ended, rest = SEPARATOR.split(rest + chunk)
        for document in ended:
            yield from cut(document, limit)
        *full, rest = cut(rest, limit)
        yield from full
    yield rest.removesuffix("\n")


def digest(section: str) -> int:
    """A hash of the text without white space around it, the same in every process."""
    return int.from_bytes(hashlib.blake2b(section.strip().encode(), digest_size=8).digest())


@dataclass(frozen=True)
class Split:
    """Which sections are held out. Decided by their text alone, so that no text is on both sides."""

    limit: int
    """Characters of a section at most."""
    one_in: int | None = None
    """One section in how many is held out, by its digest."""
    among: frozenset[int] = frozenset()
    """Digests of sections that are held out."""

    def holds_out(self, section: str) -> bool:
        number = digest(section)
        return number in self.among or (self.one_in is not None and number % self.one_in == 0)


class Corpus:
    """All sections of some sources."""

    def __init__(self, name: str, sources: Sequence[Source]):
        self.name, self.sources = name, tuple(sources)
        self.shards = [
            (source, shard) for source in range(len(sources)) for shard in range(sources[source].shards)
        ]

    def sections(self, limit: int) -> Iterator[str]:
        """All sections, in the order of the data."""
        return _sections(self.shards, self.sources, limit)

    def shuffled(self, split: Split, seed: int) -> "datasets.IterableDataset":
        """The sections that are not held out; `set_epoch` changes their order."""
        import datasets  # takes seconds, and embedded models bring their own text

        sections = datasets.IterableDataset.from_generator(
            _training_sections,
            # the list is what `datasets` shuffles, and mixes up to ten of at a time
            gen_kwargs={"shards": self.shards, "sources": self.sources, "split": split},
        )
        at_a_time = min(10, len(self.shards))  # one needs no threads, which cost more than the reading
        return sections.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER, max_buffer_input_shards=at_a_time)


def _sections(shards: list[tuple[int, int]], sources: tuple[Source, ...], limit: int) -> Iterator[str]:
    for number, shard in shards:
        source = sources[number]
        texts = source.texts(shard)
        for chunks in (
            [_checked(texts, source.files[shard])] if source.of_lines else ([text] for text in texts)
        ):
            yield from (section for section in split_documents(chunks, limit) if section.strip())


def _checked(chunks: Iterable[str], file: str) -> Iterator[str]:
    for chunk in chunks:
        if "\0" in chunk:  # valid UTF-8, and never in a text
            raise EdgewiseError(f"{file} is not a text file: it holds NUL bytes")
        yield chunk


def _training_sections(
    shards: list[tuple[int, int]], sources: tuple[Source, ...], split: Split
) -> Iterator[dict[str, str]]:
    for section in _sections(shards, sources, split.limit):
        if not split.holds_out(section):
            yield {"text": section}
