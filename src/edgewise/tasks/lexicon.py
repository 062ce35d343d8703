"""What drafts are made of: all words and the standard wordings, or those of one split, which shares none with the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from edgewise.tasks import wordings
from edgewise.tasks import words as w
from edgewise.tasks.pairs import Split

T = TypeVar("T")
SPLITS: tuple[Split, ...] = ("fit", "validation", "test", "selection")
SHARES: dict[Split, slice] = {
    "fit": slice(0, None, 3),
    "validation": slice(1, None, 6),
    "test": slice(2, None, 3),
    "selection": slice(4, None, 6),
}
"""Which words a split draws from."""


@dataclass(frozen=True)
class Lexicon:
    """Words and wordings to draw from."""

    names: Sequence[str]
    objects: Sequence[str]
    places: Sequence[str]
    events: Sequence[str]
    functions: Sequence[str]
    arguments: Sequence[str]
    descriptions: Sequence[str]
    ioi_openings: Sequence[str]
    event_wordings: Sequence[str]
    opposite_wordings: Sequence[str]


WHOLE = Lexicon(
    w.NAMES, w.OBJECTS, w.PLACES, w.EVENTS, w.FUNCTIONS, w.ARGUMENTS, w.DESCRIPTIONS,
    ioi_openings=wordings.IOI_OPENINGS[:2],
    event_wordings=(wordings.EVENT_WORDINGS[0], wordings.EVENT_WORDINGS[2]),
    opposite_wordings=(wordings.RELATION_WORDINGS[0], wordings.RELATION_WORDINGS[6]),
)  # fmt: skip
_OPENINGS = ((0, 3), (1, 4), (2,), (5, 6))
_EVENTS = ((0, 3), (2,), (5,), (4,))
_OPPOSITES = ((0, 1), (6, 3), (4, 7), (2, 5))


def lexicon_of(split: Split | None) -> Lexicon:
    """The words and wordings of a split. Antonyms are told apart by wordings only: there are too few pairs to divide;
    validation and selection have the same names of arguments."""
    if split is None:
        return WHOLE
    number = SPLITS.index(split)
    return Lexicon(
        *(share_of(words, split) for words in (w.NAMES, w.OBJECTS, w.PLACES, w.EVENTS, w.FUNCTIONS)),
        arguments=w.ARGUMENTS[1::3] if split in ("validation", "selection") else share_of(w.ARGUMENTS, split),
        descriptions=share_of(w.DESCRIPTIONS, split),
        ioi_openings=[wordings.IOI_OPENINGS[i] for i in _OPENINGS[number]],
        event_wordings=[wordings.EVENT_WORDINGS[i] for i in _EVENTS[number]],
        opposite_wordings=[wordings.RELATION_WORDINGS[i] for i in _OPPOSITES[number]],
    )


def share_of(words: Sequence[T], split: Split | None) -> Sequence[T]:
    """Every third or sixth word; all of them without a split."""
    return words if split is None else words[SHARES[split]]
