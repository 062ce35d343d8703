"""Which tokens of different prompts play the same part: those at the same distance from the same slot."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.tasks.pairs import Pair


class Roles(NamedTuple):
    """The role of each token of some prompts. Prompts of one layout are aligned token by token; those that differ in
    wording, or in the order of their slots, by the last slot before each token."""

    names: list[str]
    """E.g. "subject", "subject + 1" for the token after it."""
    numbers: Tensor
    """int64 [n, t]; of padding, which no metric depends on, that of the last token."""


def roles_of(pairs: Sequence[Pair]) -> Roles:
    """The roles of all tokens."""
    names: dict[str, int] = {}
    of_pairs = [[names.setdefault(name, len(names)) for name in _token_roles(pair)] for pair in pairs]
    longest = max(map(len, of_pairs))
    return Roles([*names], torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in of_pairs]))


def _token_roles(pair: Pair) -> list[str]:
    slots = {position: name for name, position in pair.positions.items()}
    roles, slot, distance = [], "start", 0
    for position in range(len(pair.clean_ids)):
        slot, distance = (slots[position], 0) if position in slots else (slot, distance + 1)
        roles.append(slot if not distance else f"{slot} + {distance}")
    return roles
