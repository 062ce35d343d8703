"""What kind of head a map shows, by where its weight lies. Works on any length, on full rows and on a sparse twin's.

A map is taken apart into lines and the rest. The lines are the first token, the current token, the previous one, another
fixed offset, the token after an earlier occurrence of the current one (induction), and vertical stripes. What a line holds
is counted above what its cells would hold if the rest of their rows were spread evenly, so that an even map has no lines at
any length; and as a share of the weight in the rows where the line can be, because no query looks seven tokens back before
the eighth. The rest is diffuse where it is pale, and irregular where it is sharp.

The first query sees one key only, which tells nothing: it is left out everywhere.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
TYPES = (
    "first-token",
    "current-token",
    "previous-token",
    "fixed-offset",
    "induction",
    "vertical-stripes",
    "diffuse",
    "irregular",
    "hybrid",
    "near-empty",
)
EMPTY = 0.1
"""A map with less than this share of a dense map's weight is near-empty."""
PART = 0.2
"""The least share that makes a part; it must also be half as heavy as the heaviest."""
PALE = 0.15
"""A cell with less of its row's weight is pale; so is one with less than twice an even share, in short rows."""
FEWEST, MOST = 3, 4
"""Rows that make a line, and lines that are looked for."""
TELLING = 1 / 3
"""A line can be told if the rows where it can be hold this share of the weight."""


@dataclass(frozen=True)
class HeadType:
    """One of TYPES, with what was measured."""

    name: str
    score: float
    """Share of the weight that is of this type, in the rows where it can be."""
    offset: int | None = None
    """How many tokens back, for a fixed offset; 1 for the previous token."""
    parts: tuple["HeadType", ...] = ()
    """Of a hybrid, the heaviest first."""

    def __str__(self) -> str:
        if self.parts:
            return " + ".join(map(str, self.parts))
        return f"{self.offset} back" if self.name == "fixed-offset" else self.name


class _Line(NamedTuple):
    name: str
    offset: int | None
    cells: Array  # bool [t, t]
    rows: Array  # bool [t]: where it can be


def head_type(weights: Any, tokens: Sequence[Hashable] | None = None) -> HeadType:  # [t, t], ids or strings
    """Type one map. Without tokens, or without repeated ones, no head is an induction head."""
    w = np.tril(np.asarray(weights, dtype=np.float64))
    w[:1] = 0
    mass = w.sum(1)
    held = mass.sum() / max(len(w) - 1, 1)
    if held < EMPTY or (mass > EMPTY).sum() < min(FEWEST, len(w) - 1):
        return HeadType("near-empty", 1 - min(held, 1.0))
    if len(w) <= FEWEST:
        return HeadType("irregular", 0.0)  # too short to tell
    found = _Found(w, mass).of([])
    repeats = None if tokens is None else _repeats(tokens)
    for _ in range(MOST):
        line = _heaviest(found, repeats)
        if line is None:
            break
        found = found.of([*found.lines, line])
    return _judge(found)


class _Found(NamedTuple):
    """A map and the lines that were found in it."""

    w: Array  # [t, t]
    mass: Array  # [t]
    lines: tuple[_Line, ...] = ()  # a cell belongs to the first line that has it
    free: Array = np.ones((0, 0), dtype=bool)  # bool [t, t]: cells of no line

    def of(self, lines: Sequence[_Line]) -> "_Found":
        """With these lines only."""
        free = np.tri(len(self.w), dtype=bool)
        free[:1] = False
        own = []
        for line in lines:
            own.append(line._replace(cells=line.cells & free))
            free = free & ~line.cells
        return self._replace(lines=tuple(own), free=free)

    def share(self, line: _Line, rows: Array) -> float:
        """Of the weight in some rows, what the line holds above the level of the free cells beside it."""
        rest = np.where(self.free, self.w, 0).sum(1) / np.maximum(self.free.sum(1), 1)
        held = np.where(line.cells, self.w, 0).sum(1) - line.cells.sum(1) * rest
        return float(max(held[rows].sum(), 0) / max(self.mass[rows].sum(), 1e-12))

    def sharp(self, rows: Array) -> float:
        """Of the weight in some rows, that in free cells that are not pale."""
        limit = self.mass * np.maximum(2 / np.arange(1, len(self.w) + 1), PALE)
        sharp = np.where(self.free & (self.w > limit[:, None]), self.w, 0).sum(1)
        return float(sharp[rows].sum() / max(self.mass[rows].sum(), 1e-12))


def _judge(found: _Found) -> HeadType:
    """Name the parts. Lines too weak to be one are kept out of the others' background, and then belong to the rest."""
    found = found.of([line for line in found.lines if found.share(line, line.rows) >= PART / 2])
    lines = sorted(found.lines, key=lambda line: -found.share(line, line.rows))
    lines = [line for line in lines if found.share(line, line.rows) >= PART]
    rows = lines[0].rows if lines else found.mass > 0
    irregular = found.of(lines).sharp(rows)
    diffuse = max(0.0, 1 - irregular - sum(found.share(line, rows) for line in lines))
    heaviest = max([diffuse, *(found.share(line, line.rows) for line in lines)])
    parts = [
        HeadType(line.name, found.share(line, line.rows), line.offset)
        for line in lines
        if _counts(found, line, lines[0]) and 2 * found.share(line, line.rows) >= diffuse
    ]
    if diffuse >= PART and 2 * diffuse >= heaviest:
        parts.append(HeadType("diffuse", diffuse))
    if not parts or irregular > sum(part.score for part in parts):
        return HeadType("irregular", irregular)
    if len(parts) == 1:
        return parts[0]
    parts.sort(key=lambda part: -part.score)
    return HeadType("hybrid", min(1.0, sum(part.score for part in parts)), parts=tuple(parts))


def _counts(found: _Found, line: _Line, first: _Line) -> bool:
    """Whether a line is a part beside the heaviest: in the rows where both can be, or in the whole map. The first token
    counts only in the former, because there a head rests that has nothing to look for."""
    if line is first:
        return True
    places = [] if line.name == "first-token" else [found.mass > 0]
    both = line.rows & first.rows
    if found.mass[both].sum() >= TELLING / 2 * found.mass.sum():
        places.append(both)
    return any(found.share(line, rows) >= max(PART, found.share(first, rows) / 2) for rows in places)


# -------------------------------------------------------------------------------------------------------------- lines


def _heaviest(found: _Found, repeats: Array | None) -> _Line | None:
    """The line that holds most of the weight where it can be, if any holds anything."""
    t = len(found.w)
    row: Array = np.arange(t)
    i, j = row[:, None], row[None]
    lines = [_Line("first-token", None, np.broadcast_to(j == 0, (t, t)), row > 0)]
    stripes = _stripes(found)
    if stripes.any() and not any(line.name == "vertical-stripes" for line in found.lines):
        lines.append(_Line("vertical-stripes", None, stripes & (j < i), row > int(stripes.argmax())))
    back = _best_offset(found)
    offset = None
    if back is not None:
        name = {0: "current-token", 1: "previous-token"}.get(back, "fixed-offset")
        offset = _Line(name, back or None, i - j == back, row > back)
    if repeats is not None:
        induction = _Line("induction", None, repeats, repeats.sum(1) > 0)
        if offset is not None and _goes_on(found, offset, repeats):
            own = repeats & ~offset.cells
            induction = induction._replace(cells=own, rows=own.any(1))
        elif offset is not None and _alone(found, induction) >= 0.9 * _alone(found, offset):
            offset = None  # it is one because the text repeats itself
        lines.append(induction)
    lines += [] if offset is None else [offset]
    shares = [_alone(found, line) for line in lines]
    best = int(np.argmax(shares))
    return lines[best] if shares[best] > 0 else None


def _alone(found: _Found, line: _Line) -> float:
    """What a new line holds in its rows; 0 if they are too few to tell."""
    held = np.where(line.cells & found.free, found.w, 0).sum(1)
    if (line.rows & (held > EMPTY * found.mass)).sum() < FEWEST:
        return 0.0
    if found.mass[line.rows].sum() < TELLING * found.mass.sum():
        return 0.0
    found = found.of([*found.lines, line])
    return found.share(found.lines[-1], line.rows)


def _best_offset(found: _Found) -> int | None:
    """The fixed offset of most weight, where it can be told."""
    w = np.where(found.free, found.w, 0)
    others = (w.sum(1, keepdims=True) - w) / np.maximum(found.free.sum(1, keepdims=True) - 1, 1)
    above = np.where(found.free, w - others, 0)  # each cell against the rest of its row
    after = found.mass.sum() - np.cumsum(found.mass)  # weight in the rows after each
    best, most = None, 0.0
    for back in range(len(w) - FEWEST):
        if after[back] < TELLING * found.mass.sum():
            break
        # a query that looks back to the very first token may mean it for being the first
        share = np.diagonal(above, -back)[1:].sum() / after[back]
        if share > most:
            best, most = back, share
    return best


def _stripes(found: _Found) -> Array:  # -> bool [t]
    """Keys after the first that hold twice an even share, in most of the rows that see them from below."""
    t, w = len(found.w), np.where(found.free, found.w, 0)
    even = w.sum(1, keepdims=True) / np.maximum(found.free.sum(1, keepdims=True), 1)
    times = w / np.maximum(even, 1e-12)
    striped = np.zeros(t, dtype=bool)
    for key in range(1, t - FEWEST):
        if found.mass[key + 1 :].sum() < TELLING * found.mass.sum():
            break
        column = times[key + 1 :, key][(found.mass[key + 1 :] > 0) & found.free[key + 1 :, key]]
        striped[key] = len(column) >= FEWEST and column.mean() >= 2 and (column >= 1.5).mean() >= 0.5
    return striped


def _repeats(tokens: Sequence[Hashable]) -> Array:  # -> bool [t, t]
    """Where an induction head looks: at what came after an earlier occurrence of the current token. A row in which more
    than a third of the keys would do tells nothing."""
    same = np.array([[a == b for b in tokens] for a in tokens], dtype=bool)
    after = np.zeros_like(same)
    after[:, 1:] = np.tril(same, -1)[:, :-1]
    after = np.tril(after, -1)  # in "the the", what came after is the current token itself
    after[3 * after.sum(1) > np.arange(1, len(after) + 1)] = False
    return after


def _goes_on(found: _Found, offset: _Line, repeats: Array) -> bool:
    """Whether a diagonal is there even where no repeated token explains it."""
    elsewhere = offset.rows & ~(offset.cells & repeats).any(1) & (found.mass > EMPTY)
    if elsewhere.sum() < FEWEST:
        return False
    found = found.of([*found.lines, offset])
    line = found.lines[-1]
    return 2 * found.share(line, elsewhere) >= found.share(line, line.rows)
