"""Joint search for a small circuit: components are dropped together with others, because one that others can stand in for
looks unimportant alone and may be needed all the same.

    eliminate   drop the components of least gradient at the current circuit in chunks, as long as enough is explained
    polish      exact: drop the component that costs least, until none can be dropped
    swap        exact: add one component, and see whether two others can go
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from edgewise.circuits.minimal import SearchPath
from edgewise.circuits.objective import Objective, Weights

Report = Callable[[int, float], object]
"""Called with the size of the current circuit, and the share of the effect that it explains."""
_STAGES = (0.3, 0.6, 1.0)
"""Thresholds of an elimination, as shares of what the search's own lets go."""
_PATIENCE = 4
"""Components that an elimination finds to be needed before it leaves the rest to exact search; twice as many in large
circuits."""
_BATCH = 64
"""Circuits evaluated before a polish drops something; of larger circuits, those first that seemed to spare most before."""


@dataclass
class JointSearch:
    """A search for one circuit of an objective. `best` is the smallest so far, also when the search is interrupted."""

    objective: Objective
    threshold: float
    weights: Weights | None = None
    """Of the prompts: a bootstrap sample."""
    report: Report = lambda size, explained: None
    at_once: float = 0.0
    """Share of the circuit that a polish may drop after one pass over it: 0 is one component, the exact greedy search."""
    path: SearchPath = field(default_factory=SearchPath)
    best: Tensor = field(init=False)
    spared: Tensor = field(init=False)
    """Share of the effect that the circuit explains without each of its components, as last measured; for others inf."""
    dropped: list[int] = field(default_factory=list, init=False)
    """Components in the order in which they were dropped."""

    def start(self, mask: Tensor) -> bool:
        """Begin at a circuit, bool [m]; false if it does not explain enough."""
        share = self._check(mask[None])
        if share is None:
            return False
        self._move(mask, share)
        return True

    def eliminate(self) -> None:
        """Drop the components of least gradient, recomputed after each step: first those that cost least in effect, under
        thresholds between all of it and the search's own."""
        for share in _STAGES:
            self._eliminate(1 - share * (1 - self.threshold))

    def _eliminate(self, threshold: float) -> None:
        """A chunk is halved where it fails, and grows again where it does not; a component that cannot go is passed over."""
        if self.path.fit[-1] < threshold:
            return
        needed = torch.zeros_like(self.best)
        order, chunk = self._by_gradient(), len(self.best)
        while len(order) and int(needed.sum()) <= _PATIENCE + min(_PATIENCE, len(order) // 16):
            chunk = min(chunk, max(1, len(order) // 6))
            smaller = _without(self.best, order[:chunk])
            share = self._check(smaller[None], threshold)
            if share is not None:
                self._move(smaller, share)
                order, chunk = self._by_gradient(), chunk * 2
                order = order[~needed[order]]
            elif chunk == 1:
                needed[order[0]] = True
                order = order[1:]
            else:
                chunk //= 2

    def polish(self) -> None:
        """Drop the component that costs least, by exact evaluation, until none can go: minimal under single removal."""
        expected = torch.full((self.objective.total,), torch.inf)
        members = self._by_gradient()
        expected[members] = torch.arange(len(members), 0, -1).float()  # highest first
        while True:
            members = self.best.nonzero()[:, 0]
            if not len(members):  # what no component carries, such as a last token that differs
                return
            members = members[expected[members].argsort(descending=True, stable=True)]
            for batch in members.split(_BATCH):
                shares, enough = self._explained(_each_without(self.best, batch))
                expected[batch] = shares.float().cpu()
                self.spared = expected
                if enough.any():
                    self._drop_together(batch[enough], shares[enough])
                    break
            else:
                return

    def swap(self, candidates: int = 8) -> None:
        """Add the component of largest gradient outside the circuit and drop two others, if enough is explained; so for
        each of the `candidates` best, until none helps."""
        improved = True
        while improved:
            gradient = self.objective.gradient(self.best[None], self._fit_weights()).gradient[0].cpu()
            outside = (~self.best & self.objective.candidates.cpu()).nonzero()[:, 0]
            order = outside[gradient[outside].argsort(descending=True)]
            improved = any(self._swap_in(int(added)) for added in order[:candidates])

    def _swap_in(self, added: int) -> bool:
        if self.best.sum() < 2:
            return False
        larger = self.best.clone()
        larger[added] = True
        for others in (self.best.nonzero()[:, 0],) * 2:
            others = others[larger[others]]
            shares, enough = self._explained(_each_without(larger, others))
            if not enough.any():
                return False
            larger = _without(larger, others[shares.masked_fill(~enough, -torch.inf).argmax()])
        share = self._check(larger[None])
        assert share is not None
        self._move(larger, share)
        return True

    def _drop_together(self, members: Tensor, shares: Tensor) -> None:
        """Drop as many of the members as the circuit can spare, those that cost least first; one of them it can."""
        order = shares.argsort(descending=True)
        members, shares = members[order], shares[order]
        count = min(len(members), 1 + int(self.at_once * int(self.best.sum())))
        while count > 1:
            smaller = _without(self.best, members[:count])
            share = self._check(smaller[None])
            if share is not None:
                self._move(smaller, share)
                return
            count //= 2
        self._move(_without(self.best, members[:1]), shares[0].item())

    def members(self) -> list[int]:
        """The circuit's components, those first that the rest can spare least."""
        members = self.best.nonzero()[:, 0]
        return (
            members[self.spared[members].argsort(stable=True)].tolist()
            if hasattr(self, "spared")
            else members.tolist()
        )

    def _by_gradient(self) -> Tensor:
        """The circuit's components, that of least gradient first, int64."""
        gradient = self.objective.gradient(self.best[None], self._fit_weights()).gradient[0].cpu()
        members = self.best.nonzero()[:, 0]
        return members[gradient[members].argsort()]

    def _fit_weights(self) -> Tensor | None:
        return (self.weights or {}).get("fit")

    def _explained(self, masks: Tensor, threshold: float | None = None) -> tuple[Tensor, Tensor]:
        return self.objective.explained_enough(masks, threshold or self.threshold, self.weights)

    def _check(self, mask: Tensor, threshold: float | None = None) -> float | None:
        """Share of the effect that a circuit, bool [1, m], explains; None if that is not enough."""
        share, enough = self._explained(mask, threshold)
        return share.item() if enough else None

    def _move(self, mask: Tensor, share: float) -> None:
        if self.path.sizes:
            self.dropped = [i for i in self.dropped if not mask[i]]
            self.dropped += (self.best & ~mask).nonzero()[:, 0].tolist()
        self.best = mask
        self.path.sizes.append(int(mask.sum()))
        self.path.fit.append(share)
        self.report(self.path.sizes[-1], share)


def _without(mask: Tensor, components: Tensor) -> Tensor:
    smaller = mask.clone()
    smaller[components] = False
    return smaller


def _each_without(mask: Tensor, components: Tensor) -> Tensor:  # -> bool [components, m]
    """The circuit without each of the components."""
    copies = mask.repeat(len(components), 1)
    copies[torch.arange(len(components)), components] = False
    return copies
