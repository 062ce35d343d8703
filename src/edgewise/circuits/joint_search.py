"""Joint search for a small circuit: components are dropped together with others, because one that others can stand in for
looks unimportant alone and may be needed all the same.

    eliminate   drop the components of least gradient at the current circuit in chunks, as long as enough is explained
    polish      exact: drop the component that costs least, until none can be dropped
    swap        exact: add one component, and see whether two others can go
    settle      go back to the smallest circuit of the search that holds up on prompts which it has not seen

Among hundreds of components many circuits fit few prompts by chance, so a search ends with one that fits the prompts it was
found by: `settle` chooses its size by others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from edgewise.circuits.minimal import SearchPath
from edgewise.circuits.objective import Objective, Weights
from edgewise.tasks.pairs import SEARCHED, Split

Report = Callable[[int, float], object]
"""Called with the size of the current circuit, and the share of the effect that it explains."""
_STAGES = (0.3, 0.6, 1.0)
"""Thresholds of an elimination, as shares of what the search's own lets go."""
_PATIENCE = 4
"""Components that an elimination finds to be needed before it leaves the rest to exact search; twice as many in large
circuits."""
_BATCH, _MANY_BATCH = 64, 24
"""Circuits evaluated before a polish drops something: of circuits up to the first number all, of larger ones as many as the
second, those first that seemed to spare most before."""
_FEW = 8
"""Circuits evaluated at once on validation prompts, of which the first that explains enough is taken."""


@dataclass
class JointSearch:
    """A search for one circuit of an objective. `best` is the smallest so far, also when the search is interrupted."""

    objective: Objective
    threshold: float
    """Least share of the effect, on the fit and on the validation prompts."""
    weights: Weights | None = None
    """Of the prompts: a bootstrap sample."""
    report: Report = lambda size, explained: None
    at_once: float = 0.0
    """Share of the circuit that a polish may drop after one pass over it: 0 is one component, the exact greedy search."""
    path: SearchPath = field(default_factory=SearchPath)
    beyond: SearchPath = field(default_factory=SearchPath, init=False)
    """Smaller circuits of the search, which explain too little of the selection prompts."""
    levels: dict[Split, float] = field(init=False)
    """Least share of the effect on each split."""
    best: Tensor = field(init=False)
    spared: Tensor = field(init=False)
    """Share of the effect that the circuit explains without each of its components, as last measured; for others inf."""
    dropped: list[int] = field(default_factory=list, init=False)
    """Components in the order in which they were dropped."""
    _masks: list[Tensor] = field(default_factory=list, init=False)
    """Circuits of the path."""

    @property
    def size(self) -> int:
        return int(self.best.sum())

    def start(self, mask: Tensor) -> bool:
        """Begin at a circuit, bool [m]; false if it does not explain enough."""
        self.levels = dict.fromkeys(SEARCHED, self.threshold)
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
            for batch in members.split(_BATCH if len(members) <= _BATCH else _MANY_BATCH):
                shares = self._fit_shares(_each_without(self.best, batch))
                expected[batch] = shares.float().cpu()
                self.spared = expected
                if self._drop_together(batch, shares):
                    break
            else:
                return

    def settle(self) -> None:
        """Go back to the smallest circuit of the path that explains enough of the selection prompts, or as much as the first
        one if that is less. It has to go on explaining so much of them, and no less of the prompts of the search than it
        does; if it is the last one, the search's levels stay."""
        if "selection" not in self.objective.effects:
            return
        shares = self._shares_of_selection(self._masks[:1])
        least = min(self.threshold, *shares)
        last = self._smallest_that_explains(least)
        if last < len(self._masks) - 1:
            self._go_back(last)
        self.levels["selection"] = least

    def _smallest_that_explains(self, least: float) -> int:
        """Number of the smallest circuit of the path that explains so much of the selection prompts."""
        for last in range(len(self._masks), 0, -_FEW):
            first = max(0, last - _FEW)
            shares = self._shares_of_selection(self._masks[first:last])
            enough = [i for i, share in enumerate(shares) if share >= least]
            if enough:
                self.beyond.selection[:0] = shares[enough[-1] + 1 :]
                return first + enough[-1]
            self.beyond.selection[:0] = shares
        return 0

    def _shares_of_selection(self, masks: list[Tensor]) -> list[float]:
        return self.objective.explained(torch.stack(masks), "selection").tolist()

    def _go_back(self, last: int) -> None:
        """Make a circuit of the path the current one, and those after it `beyond`."""
        path = self.path
        self.beyond.sizes.extend(path.sizes[last + 1 :])
        self.beyond.fit.extend(path.fit[last + 1 :])
        self.best, smaller = self._masks[last : last + 2]
        del path.sizes[last + 1 :], path.fit[last + 1 :], self._masks[last + 1 :]
        self.dropped = [i for i in self.dropped if not self.best[i]]
        self._drop_part(smaller)
        for split in SEARCHED:
            if split in self.objective.effects:
                self.levels[split] = self.objective.explained(self.best[None], split).item()

    def _drop_part(self, smaller: Tensor) -> None:
        """Of what the search dropped together, drop as many as the selection prompts allow, in the order of gradients."""
        order = self._by_gradient()
        order = order[~smaller[order]]
        if len(order) < 2:
            return
        masks = self.best.repeat(len(order) - 1, 1)
        for count, mask in enumerate(masks, 1):
            mask[order[:count]] = False
        levels: dict[Split, float] = {
            **self.levels,
            "selection": min(self.threshold, self._shares_of_selection([self.best])[0]),
        }
        shares, enough = self.objective.explained_enough(masks, levels)
        if enough.any():
            count = int(enough.nonzero()[-1])
            self._move(masks[count], shares[count].item())

    def swap(self, candidates: int = 8) -> None:
        """Add the component of largest gradient outside the circuit and drop two others, if enough is explained; so for
        each of the `candidates` best, until none helps."""
        improved = True
        while improved:
            gradient = self._gradient(self.best, self.objective.candidates.cpu())
            outside = (~self.best & self.objective.candidates.cpu()).nonzero()[:, 0]
            order = outside[gradient[outside].argsort(descending=True)]
            improved = any(self._swap_in(int(added)) for added in order[:candidates])

    def _swap_in(self, added: int) -> bool:
        """Of the components that the larger circuit's gradient finds least, that which costs least goes first."""
        if self.size < 2:
            return False
        larger = _with(self.best, added)
        gradient = self._gradient(larger, larger)
        others = self.best.nonzero()[:, 0]
        others = others[gradient[others].argsort()][:_BATCH]
        shares = self._fit_shares(_each_without(larger, others[: _BATCH // 4]))
        if shares.max() < self.levels["fit"]:
            return False
        larger = _without(larger, others[shares.argmax()])
        others = others[larger[others]]
        shares = self._fit_shares(_each_without(larger, others[: _BATCH // 2]))
        return self._drop_one(larger, others[: len(shares)], shares)

    def _drop_together(self, members: Tensor, shares: Tensor) -> bool:
        """Drop as many of the members as the circuit can spare, those that cost least first; false if it can spare none."""
        order = shares.argsort(descending=True)
        order = order[shares[order] >= self.levels["fit"]]
        count = min(len(order), 1 + int(self.at_once * self.size))
        while count > 1:
            smaller = _without(self.best, members[order[:count]])
            share = self._check(smaller[None])
            if share is not None:
                self._move(smaller, share)
                return True
            count //= 2
        return self._drop_one(self.best, members, shares)

    def _drop_one(self, mask: Tensor, members: Tensor, shares: Tensor) -> bool:
        """Move to the circuit without that member which costs least among those it can spare, given the shares on the fit
        prompts without each; validation prompts are computed for these only, a few at a time."""
        order = shares.argsort(descending=True)
        order = order[shares[order] >= self.levels["fit"]]
        for few in order.split(_FEW) if len(order) else ():
            _, enough = self._explained(_each_without(mask, members[few]))
            if enough.any():
                best = few[int(enough.int().argmax())]
                self._move(_without(mask, members[best]), shares[best].item())
                return True
        return False

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
        members = self.best.nonzero()[:, 0]
        return members[self._gradient(self.best, self.best)[members].argsort()]

    def _gradient(self, mask: Tensor, wanted: Tensor) -> Tensor:
        weights = (self.weights or {}).get("fit")
        return self.objective.gradient(mask[None], weights, wanted).gradient[0].cpu()

    def _fit_shares(self, masks: Tensor) -> Tensor:
        return self.objective.explained(masks, "fit", self.weights)

    def _explained(self, masks: Tensor, least: float | None = None) -> tuple[Tensor, Tensor]:
        """Share of the effect on the fit prompts, and whether each split's is enough."""
        return self.objective.explained_enough(masks, least or self.levels, self.weights)

    def _check(self, mask: Tensor, least: float | None = None) -> float | None:
        """Share of the effect that a circuit, bool [1, m], explains; None if that is not enough."""
        share, enough = self._explained(mask, least)
        return share.item() if enough else None

    def _move(self, mask: Tensor, share: float) -> None:
        if self.path.sizes:
            self.dropped = [i for i in self.dropped if not mask[i]]
            self.dropped += (self.best & ~mask).nonzero()[:, 0].tolist()
        self.best = mask
        self.path.sizes.append(int(mask.sum()))
        self.path.fit.append(share)
        self._masks.append(mask)
        self.report(self.path.sizes[-1], share)


def _with(mask: Tensor, component: int) -> Tensor:
    larger = mask.clone()
    larger[component] = True
    return larger


def _without(mask: Tensor, components: Tensor) -> Tensor:
    smaller = mask.clone()
    smaller[components] = False
    return smaller


def _each_without(mask: Tensor, components: Tensor) -> Tensor:  # -> bool [components, m]
    """The circuit without each of the components."""
    copies = mask.repeat(len(components), 1)
    copies[torch.arange(len(components)), components] = False
    return copies
