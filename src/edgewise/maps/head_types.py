"""Classify an attention head by where the weight of its map lies, at any length, dense or sparse.

A map is decomposed into lines and a rest. The lines are the first token, the current token, the previous token, another
fixed offset, an earlier occurrence of the current token (duplicate-token), the token after it (induction), and vertical
stripes. The share of a
line is the weight above what its cells would hold if the rest of each query's weight were spread evenly, so that an
even map has no lines at any length; it is relative to the weight of the queries where the line can exist, because no
query reaches seven tokens back before the eighth. The rest is diffuse where its weights are small, and irregular where
they are sharp.

The first query attends to one key only, which is uninformative: it is left out everywhere.
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
    "multiple-offsets",
    "duplicate-token",
    "induction",
    "name-mover",
    "vertical-stripes",
    "diffuse",
    "irregular",
    "hybrid",
    "near-empty",
)
_DIAGONALS = ("current-token", "previous-token", "fixed-offset")
NEAR_EMPTY = 0.1
"""A map with less than this share of a dense map's weight is near-empty; so is a query."""
MIN_SHARE = 0.2
"""Least share of a component; it must also be half as heavy as the heaviest."""
SHARP = 0.15
"""A cell is sharp if it holds more than this share of its query's weight, and more than twice an even share."""
NAME_TASKS = ("ioi",)
"""Tasks whose answer is a name in the prompt: name movers are heads whose last query attends mostly to it."""
MIN_QUERIES = 3
"""Queries that make a line."""
MAX_LINES = 4
"""Lines that are searched for."""
MIN_COVERAGE = 1 / 3
"""A line is identifiable if the queries where it can exist hold this share of the weight."""


@dataclass(frozen=True)
class HeadType:
    """One of TYPES, with its score."""

    name: str
    score: float
    """Share of the weight that is of this type, over the queries where it can exist."""
    offset: int | None = None
    """Tokens back, for a fixed offset; 1 for the previous token."""
    components: tuple["HeadType", ...] = ()
    """Of a hybrid, or of several offsets, the heaviest first."""

    def __str__(self) -> str:
        if self.name == "multiple-offsets":
            return f"offsets {', '.join(str(offset) for offset in sorted(c.offset or 0 for c in self.components))}"
        if self.components:
            return " + ".join(map(str, self.components))
        return f"{self.offset} back" if self.name == "fixed-offset" else self.name


class _Line(NamedTuple):
    name: str
    offset: int | None
    cells: Array  # bool [t, t]
    queries: Array  # bool [t]: where the line can exist


def answer_positions(task: str | None, tokens: Sequence[str], answers: Sequence[str]) -> list[int]:
    """Where a name mover of a task looks: at the answer in the prompt. None for tasks that do not ask for a name."""
    wanted = {answer.strip() for answer in answers} if task in NAME_TASKS else set()
    return [position for position, token in enumerate(tokens[:-1]) if token.strip() in wanted]


def head_type(
    weights: Any, tokens: Sequence[Hashable] | None = None, names: Sequence[int] = ()
) -> HeadType:  # [t, t], ids or strings
    """Classify one attention map. Without repeated tokens, no head is an induction or duplicate-token head. `names`: where
    the answer stands in the prompt of a task that asks for a name; without it, no head is a name mover."""
    w = np.tril(np.asarray(weights, dtype=np.float64))
    w[:1] = 0
    mass = w.sum(1)
    if names and (moved := w[-1, list(names)].sum()) > max(0.5 * mass[-1], NEAR_EMPTY):
        return HeadType("name-mover", float(moved / mass[-1]))
    mean_mass = mass.sum() / max(len(w) - 1, 1)
    if mean_mass < NEAR_EMPTY or (mass > NEAR_EMPTY).sum() < min(MIN_QUERIES, len(w) - 1):
        return HeadType("near-empty", 1 - min(mean_mass, 1.0))
    if len(w) <= MIN_QUERIES:
        return HeadType("irregular", 0.0)  # too short to classify
    decomposed = _Decomposition(w, mass).with_lines([])
    targets = {} if tokens is None else _token_targets(tokens)
    for _ in range(MAX_LINES):
        line = _heaviest_line(decomposed, targets)
        if line is None:
            break
        decomposed = decomposed.with_lines([*decomposed.lines, line])
    return _classify(decomposed)


class _Decomposition(NamedTuple):
    """A map, its lines, and the cells of no line."""

    w: Array  # [t, t]
    mass: Array  # [t]: weight of each query
    lines: tuple[_Line, ...] = ()  # a cell belongs to the first line that has it
    free: Array = np.ones((0, 0), dtype=bool)  # bool [t, t]: cells of no line

    def with_lines(self, lines: Sequence[_Line]) -> "_Decomposition":
        """The same map decomposed into these lines only."""
        free = np.tri(len(self.w), dtype=bool)
        free[:1] = False
        disjoint = []
        for line in lines:
            disjoint.append(line._replace(cells=line.cells & free))
            free = free & ~line.cells
        return self._replace(lines=tuple(disjoint), free=free)

    def share(self, line: _Line, queries: Array) -> float:
        """Share of the queries' weight that the line holds above the mean of the free cells beside it."""
        background = np.where(self.free, self.w, 0).sum(1) / np.maximum(self.free.sum(1), 1)
        above = np.where(line.cells, self.w, 0).sum(1) - line.cells.sum(1) * background
        return float(max(above[queries].sum(), 0) / max(self.mass[queries].sum(), 1e-12))

    def own_share(self, line: _Line) -> float:
        """Share of a line over the queries where it can exist."""
        return self.share(line, line.queries)

    def sharp_share(self, queries: Array) -> float:
        """Share of the queries' weight in free cells that are sharp."""
        limit = self.mass * np.maximum(2 / np.arange(1, len(self.w) + 1), SHARP)
        sharp = np.where(self.free & (self.w > limit[:, None]), self.w, 0).sum(1)
        return float(sharp[queries].sum() / max(self.mass[queries].sum(), 1e-12))


def _classify(decomposed: _Decomposition) -> HeadType:
    """Name the components. Lines too weak to be one stay out of the others' background, and then count as rest."""
    lines = [line for line in decomposed.lines if decomposed.own_share(line) >= MIN_SHARE / 2]
    decomposed = decomposed.with_lines(lines)
    lines = sorted(decomposed.lines, key=lambda line: -decomposed.own_share(line))
    lines = [line for line in lines if decomposed.own_share(line) >= MIN_SHARE]
    queries = lines[0].queries if lines else decomposed.mass > 0
    irregular = decomposed.with_lines(lines).sharp_share(queries)
    diffuse = max(0.0, 1 - irregular - sum(decomposed.share(line, queries) for line in lines))
    heaviest = max([diffuse, *map(decomposed.own_share, lines)])
    components = [
        HeadType(line.name, decomposed.own_share(line), line.offset)
        for line in lines
        if _is_component(decomposed, line, lines[0]) and 2 * decomposed.own_share(line) >= diffuse
    ]
    if diffuse >= MIN_SHARE and 2 * diffuse >= heaviest:
        components.append(HeadType("diffuse", diffuse))
    if not components or irregular > sum(component.score for component in components):
        return HeadType("irregular", irregular)
    if len(components) == 1:
        return components[0]
    components.sort(key=lambda component: -component.score)
    total = sum(component.score for component in components)
    if all(component.name in _DIAGONALS for component in components):
        return HeadType("multiple-offsets", min(1.0, total), components=tuple(components))
    return HeadType("hybrid", min(1.0, total), components=tuple(components))


def _is_component(decomposed: _Decomposition, line: _Line, heaviest: _Line) -> bool:
    """Whether a line is a component beside the heaviest: over the queries where both can exist, or over all. The first token
    counts only over the former: it is the attention sink of queries where the head has no target."""
    if line is heaviest:
        return True
    candidates = [] if line.name == "first-token" else [decomposed.mass > 0]
    both = line.queries & heaviest.queries
    if decomposed.mass[both].sum() >= MIN_COVERAGE / 2 * decomposed.mass.sum():
        candidates.append(both)
    return any(
        decomposed.share(line, queries) >= max(MIN_SHARE, decomposed.share(heaviest, queries) / 2)
        for queries in candidates
    )


# -------------------------------------------------------------------------------------------------------------- lines


def _heaviest_line(decomposed: _Decomposition, targets: dict[str, Array]) -> _Line | None:
    """The line that would hold the largest share, None if none holds any; `targets`: of heads that find tokens."""
    t = len(decomposed.w)
    position: Array = np.arange(t)
    i, j = position[:, None], position[None]
    lines = [_Line("first-token", None, np.broadcast_to(j == 0, (t, t)), position > 0)]
    stripes = _stripes(decomposed)
    if stripes.any() and not any(line.name == "vertical-stripes" for line in decomposed.lines):
        lines.append(_Line("vertical-stripes", None, stripes & (j < i), position > int(stripes.argmax())))
    back = _best_offset(decomposed)
    diagonal = None
    if back is not None:
        name = {0: "current-token", 1: "previous-token"}.get(back, "fixed-offset")
        diagonal = _Line(name, back or None, i - j == back, position > back)
    repeats = False
    for name, cells in targets.items():
        line = _Line(name, None, cells, cells.sum(1) > 0)
        if diagonal is not None and _continues_elsewhere(decomposed, diagonal, cells):
            cells = cells & ~diagonal.cells
            line = line._replace(cells=cells, queries=cells.any(1))
        elif diagonal is not None:  # it is one because the text repeats itself
            repeats = repeats or _new_share(decomposed, line) >= 0.9 * _new_share(decomposed, diagonal)
        lines.append(line)
    lines += [] if diagonal is None or repeats else [diagonal]
    shares = [_new_share(decomposed, line) for line in lines]
    best = int(np.argmax(shares))
    return lines[best] if shares[best] > 0 else None


def _new_share(decomposed: _Decomposition, line: _Line) -> float:
    """Share of a line if it were added; 0 if too few queries show it."""
    held = np.where(line.cells & decomposed.free, decomposed.w, 0).sum(1)
    if (line.queries & (held > NEAR_EMPTY * decomposed.mass)).sum() < MIN_QUERIES:
        return 0.0
    if decomposed.mass[line.queries].sum() < MIN_COVERAGE * decomposed.mass.sum():
        return 0.0
    decomposed = decomposed.with_lines([*decomposed.lines, line])
    return decomposed.share(decomposed.lines[-1], line.queries)


def _best_offset(decomposed: _Decomposition) -> int | None:
    """The fixed offset of the largest share, of those that are identifiable."""
    w = np.where(decomposed.free, decomposed.w, 0)
    others = (w.sum(1, keepdims=True) - w) / np.maximum(decomposed.free.sum(1, keepdims=True) - 1, 1)
    above = np.where(decomposed.free, w - others, 0)  # each cell against the rest of its query
    after = decomposed.mass.sum() - np.cumsum(decomposed.mass)  # weight of the queries after each
    best, largest = None, 0.0
    for back in range(len(w) - MIN_QUERIES):
        if after[back] < MIN_COVERAGE * decomposed.mass.sum():
            break
        # the query whose key at this offset is the very first token is ambiguous: it may be a first-token head
        share = np.diagonal(above, -back)[1:].sum() / after[back]
        if share > largest:
            best, largest = back, share
    return best


def _stripes(decomposed: _Decomposition) -> Array:  # -> bool [t]
    """Keys after the first that hold twice an even share, for most of the queries after them."""
    t, w = len(decomposed.w), np.where(decomposed.free, decomposed.w, 0)
    even = w.sum(1, keepdims=True) / np.maximum(decomposed.free.sum(1, keepdims=True), 1)
    ratio = w / np.maximum(even, 1e-12)
    striped = np.zeros(t, dtype=bool)
    for key in range(1, t - MIN_QUERIES):
        mass = decomposed.mass[key + 1 :]
        if mass.sum() < MIN_COVERAGE * decomposed.mass.sum():
            break
        column = ratio[key + 1 :, key][(mass > 0) & decomposed.free[key + 1 :, key]]
        striped[key] = len(column) >= MIN_QUERIES and column.mean() >= 2 and (column >= 1.5).mean() >= 0.5
    return striped


def _token_targets(tokens: Sequence[Hashable]) -> dict[str, Array]:  # bool [t, t] each
    """The keys of heads that find tokens: earlier occurrences of the current token, or the tokens after them. A query for
    which more than a third of the keys qualify is uninformative."""
    same = np.array([[a == b for b in tokens] for a in tokens], dtype=bool)
    after = np.zeros_like(same)
    after[:, 1:] = np.tril(same, -1)[:, :-1]
    after = np.tril(after, -1)  # in "the the", the token after is the current token itself
    targets = {"induction": after, "duplicate-token": np.tril(same, -1)}
    for cells in targets.values():
        cells[3 * cells.sum(1) > np.arange(1, len(cells) + 1)] = False
    return targets


def _continues_elsewhere(decomposed: _Decomposition, diagonal: _Line, targets: Array) -> bool:
    """Whether a diagonal exists also for queries where it is no induction target."""
    elsewhere = diagonal.queries & ~(diagonal.cells & targets).any(1) & (decomposed.mass > NEAR_EMPTY)
    if elsewhere.sum() < MIN_QUERIES:
        return False
    decomposed = decomposed.with_lines([*decomposed.lines, diagonal])
    line = decomposed.lines[-1]
    return 2 * decomposed.share(line, elsewhere) >= decomposed.own_share(line)
