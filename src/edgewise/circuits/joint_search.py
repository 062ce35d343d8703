"""Joint search for a small circuit: components are dropped together with others, because one that others can stand in for
looks unimportant alone and may be needed all the same.

    eliminate   drop the components of least gradient at the current circuit in chunks, as long as enough is explained
    polish      exact: drop the component that costs least, until none can be dropped
    settle      go back to the smallest circuit that explains enough of the validation prompts too, and polish that
    swap        exact: add one component, and see whether two others can go

Components are dropped by what the fit prompts say. Among hundreds of components many circuits fit few prompts by chance, so
the search would end with one that does not hold up; which of its circuits is taken is up to prompts that it has not seen.
Where `asks_validation` is set from the beginning, these have to be explained at each step instead.
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
    """Least share of the effect, on the fit prompts; once settled, on the validation prompts."""
    weights: Weights | None = None
    """Of the prompts: a bootstrap sample."""
    report: Report = lambda size, explained: None
    asks_validation: bool = False
    """The validation prompts have to be explained too; true once settled."""
    at_once: float = 0.0
    """Share of the circuit that a polish may drop after one pass over it: 0 is one component, the exact greedy search."""
    path: SearchPath = field(default_factory=SearchPath)
    beyond: SearchPath = field(default_factory=SearchPath, init=False)
    """Smaller circuits of the search, which explain too little of the validation prompts."""
    level: float | None = field(default=None, init=False)
    """Least share of the effect on the fit prompts, once settled."""
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
        """Begin at a circuit, bool [m]; false if it does not explain enough, on the validation prompts too."""
        shares, enough = self.objective.explained_enough(mask[None], self.threshold, self.weights)
        if not enough:
            return False
        self._move(mask, shares.item())
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
        """Go back to the smallest circuit of the path that explains enough of the validation prompts. From then on they are
        asked too, and of the fit prompts the circuit has to explain what the next smaller one on the path did, its level;
        so the last circuit of the path, if it holds up, stays what it is. Polish what is left."""
        last = len(self._masks) - 1 if self.asks_validation else self._smallest_that_holds_up()
        smaller = self.path.fit[last + 1 : last + 2]
        self.level = max(self.threshold, min(self.path.fit[last], *smaller)) if smaller else self.threshold
        self.asks_validation = True
        self._go_back(last)
        self.polish()

    def _smallest_that_holds_up(self) -> int:
        """Number of a circuit of the path; the first, at which the search started, does."""
        if "validation" not in self.objective.effects:
            return len(self._masks) - 1
        shares: list[float] = []
        for last in range(len(self._masks), 0, -_FEW):
            masks = torch.stack(self._masks[max(0, last - _FEW) : last])
            shares = [*self.objective.explained(masks, "validation", self.weights).tolist(), *shares]
            enough = [i for i, share in enumerate(shares) if share >= self.threshold]
            if enough:
                smallest = enough[-1]
                self.beyond.validation.extend(shares[smallest + 1 :])
                return len(self._masks) - len(shares) + smallest
        return 0

    def _go_back(self, last: int) -> None:
        """Make a circuit of the path the current one, and those after it `beyond`."""
        path = self.path
        self.beyond.sizes.extend(path.sizes[last + 1 :])
        self.beyond.fit.extend(path.fit[last + 1 :])
        del path.sizes[last + 1 :], path.fit[last + 1 :], self._masks[last + 1 :]
        self.best = self._masks[last]
        self.dropped = [i for i in self.dropped if not self.best[i]]

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
        if shares.max() < self._least:
            return False
        larger = _without(larger, others[shares.argmax()])
        others = others[larger[others]]
        shares = self._fit_shares(_each_without(larger, others[: _BATCH // 2]))
        return self._drop_one(larger, others[: len(shares)], shares)

    def _drop_together(self, members: Tensor, shares: Tensor) -> bool:
        """Drop as many of the members as the circuit can spare, those that cost least first; false if it can spare none."""
        order = shares.argsort(descending=True)
        order = order[shares[order] >= self._least]
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
        order = order[shares[order] >= self._least]
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

    @property
    def _least(self) -> float:
        """Least share of the effect on the fit prompts."""
        return self.threshold if self.level is None else self.level

    def _explained(self, masks: Tensor, least: float | None = None) -> tuple[Tensor, Tensor]:
        """Share of the effect on the fit prompts, and whether that is enough, and what the validation prompts ask."""
        if self.asks_validation:
            return self.objective.explained_enough(masks, least or self.threshold, self.weights, self.level)
        shares = self._fit_shares(masks)
        return shares, shares >= (least or self._least)

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
