"""Find a minimal circuit: joint searches from several starts, the best of them polished and put to scrutiny."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from edgewise.circuits.joint_search import JointSearch, Report
from edgewise.circuits.learned_mask import MaskTraining, learn_mask
from edgewise.circuits.minimal import Explained, MinimalCircuit, Stability
from edgewise.circuits.objective import MaskGradient, Objective, Weights
from edgewise.circuits.result import ComponentCircuit, PrefixCircuit
from edgewise.circuits.scrutiny import bootstrap_stability, compare_starts, random_starts, run_controls
from edgewise.circuits.search import Search

MANY = 200
"""Candidates above which a search begins with the best share of the ranking, and a mask is learned where that is stuck."""
STUCK = 2 / 3
"""A search that leaves more than this share of the prefix is stuck."""
PROMISING = 1.15
"""Of many candidates, searches are polished that elimination leaves with at most this times the smallest circuit."""
SEVERAL = 10_000
"""Candidates up to which a search also starts from the prefix; among more, only where it would end with more than that."""
ALIKE = 1 / 4
"""Among many candidates, the prefix is not searched if the first start has all of it and less than this share more."""
FEW = 64
"""Candidates up to which several starts and swaps are tried, and a search is repeated on bootstrap samples, which costs many
exact evaluations; the size is not chosen by other prompts, because few choices hardly adapt to those of the search."""
SAMPLES = 4
"""Bootstrap samples."""


class Interrupted(KeyboardInterrupt):
    """A search that was interrupted, with what it had found."""

    def __init__(self, partial: Any) -> None:
        super().__init__()
        self.partial = partial


@dataclass
class MinimalSearch:
    """A search for the smallest circuit of an objective."""

    objective: Objective
    threshold: float
    ranking: Tensor
    """int64: components by a ranking of single ones, the most important first."""
    prefix: int
    """Size of the ranking's smallest prefix that explains enough."""
    seed: int = 0
    scrutinise: bool = True
    report: Report = lambda size, explained: None
    within: Tensor | None = None
    """A circuit, bool [m], that is known to explain enough, to start from."""
    starts: dict[str, Tensor] = field(default_factory=dict, init=False)
    best: JointSearch | None = field(default=None, init=False)
    running: list[JointSearch] = field(default_factory=list, init=False)
    """Searches of all prompts, of which an interrupt keeps the smallest circuit."""

    def run(self) -> MinimalCircuit:
        """The smallest circuit found. If interrupted, raises `Interrupted` with the smallest so far."""
        try:
            self._search()
            circuit = self._result(is_minimal=True)
            return self._scrutinised(circuit) if self.scrutinise else circuit
        except KeyboardInterrupt as interrupt:
            if not self.running:
                raise
            self.best = min(self.running, key=lambda search: ("selection" not in search.levels, search.size))
            raise Interrupted(self._result(is_minimal=False)) from interrupt

    def _search(self) -> None:
        """Searches from all starts, of which the promising ones are polished; of the smallest circuits, that which explains
        most of the validation prompts."""
        searches = {name: search for name, start in self._starts() if (search := self._eliminated(start))}
        if self._many and self.within is None and self._is_stuck(searches):
            learned = self._eliminated(self._learned(self._first_start()))
            searches |= {} if learned is None else {"learned mask": learned}
        polished: list[JointSearch] = []
        smallest = min((search.size for search in searches.values()), default=0)
        for name, search in searches.items():
            if self._few or search.size <= PROMISING * smallest:
                search.polish()
                polished.append(search)
            self.starts[name] = search.best.clone()
        self.best = self._settled(polished)
        if "prefix" not in searches and (self.best is None or self.best.size > self.prefix):
            self.best = self._joint_search(self._prefix(self.prefix)) or self.best
        if self.best is None:  # not even the prefix explains enough; all components do
            self.best = self._joint_search(self.objective.candidates.cpu(), required=True)
        if self.best is not None:
            self.best.polish()

    def _settled(self, searches: list[JointSearch]) -> JointSearch | None:
        """Of searches the best, that which ended with the smallest circuit with components exchanged; of a size that holds
        up on other prompts, if there are many candidates to adapt to those of the search."""
        smallest = max(searches, key=self._merit, default=None)
        if smallest is not None and smallest.size <= FEW:
            smallest.swap()
            smallest.polish()
        if not self._few:
            for search in searches:
                search.settle()
        return max(searches, key=self._merit, default=None)

    def _starts(self) -> Iterator[tuple[str, Tensor]]:
        if self.within is not None:
            name, first = "within heads", self.within & self.objective.candidates.cpu()
        else:
            name, first = "best share" if self._many else "all components", self._first_start()
        yield name, first
        prefix = self._prefix(self.prefix)
        is_another = (
            self._few or int((first & ~prefix).sum()) > ALIKE * self.prefix or bool((prefix & ~first).any())
        )
        if is_another and int(self.objective.candidates.sum()) <= SEVERAL:
            yield "prefix", prefix
        if self._few and self.scrutinise:
            for i, start in enumerate(random_starts(self.objective, 2, self.seed)):
                yield f"random {i + 1}", start

    def _is_stuck(self, searches: dict[str, JointSearch]) -> bool:
        return self.prefix > FEW and all(search.size > STUCK * self.prefix for search in searches.values())

    def _joint_search(
        self, start: Tensor, weights: Weights | None = None, required: bool = False
    ) -> JointSearch | None:
        """A finished search; none, if its start does not explain enough."""
        search = self._eliminated(start, weights, required)
        if search is None:
            return None
        search.polish()
        return search if weights is not None else self._settled([search])

    def _eliminated(
        self, start: Tensor, weights: Weights | None = None, required: bool = False
    ) -> JointSearch | None:
        search = JointSearch(self.objective, self.threshold, weights, self.report)
        search.at_once = 0.06 if self._few else 0.1
        if not search.start(start) and not (required and search.start(torch.ones_like(start))):
            return None
        if weights is None:
            self.running.append(search)
        search.eliminate()
        return search

    def _merit(self, search: JointSearch) -> tuple[int, float]:
        """Smaller first; then what explains more of the validation prompts."""
        split = "validation" if "validation" in self.objective.effects else "fit"
        return -search.size, self.objective.explained(search.best[None], split).item()

    @property
    def _few(self) -> bool:
        return int(self.objective.candidates.sum()) <= FEW

    @property
    def _many(self) -> bool:
        return int(self.objective.candidates.sum()) > MANY

    def _prefix(self, size: int) -> Tensor:
        mask = torch.zeros(self.objective.total, dtype=torch.bool)
        mask[self.ranking[:size].cpu()] = True
        return mask

    def _first_start(self) -> Tensor:
        """All candidates; of many, the best share of the ranking: up to four times the prefix that explains enough."""
        candidates = self.objective.candidates.cpu()
        if self._many:
            masks = torch.stack([self._prefix(times * self.prefix) for times in (4, 3, 2, 1)]) & candidates
            _, enough = self.objective.explained_enough(masks, self.threshold)
            return masks[int(enough.int().argmax())]
        return candidates

    def _learned(self, members: Tensor) -> Tensor:
        """The smallest circuit that explains enough among those that a learned mask orders; the members, if none does."""
        training = MaskTraining(seed=self.seed)
        n, generator = len(self.objective.effects["fit"]), torch.Generator().manual_seed(self.seed)

        def gradient(masks: Tensor) -> MaskGradient:
            drawn = torch.randperm(n, generator=generator)[: training.prompts]
            return self.objective.gradient(masks, torch.zeros(n).index_fill(0, drawn, 1.0), members)

        ranked = learn_mask(gradient, members, self.threshold, training, self.report)
        return self._smallest_share(ranked, members)

    def _smallest_share(self, ranked: Tensor, members: Tensor) -> Tensor:
        """The smallest share of ranked components that explains enough, by bisection; the members, if none is found."""
        sizes = torch.unique((len(ranked) * 0.85 ** torch.arange(24)).long().clamp(min=1)).tolist()
        low, high, best = 0, len(sizes), members
        while low < high:
            middle = (low + high) // 2
            mask = torch.zeros_like(members).index_fill(0, ranked[: sizes[middle]], True)
            if self.objective.explained_enough(mask[None], self.threshold)[1].item():
                high, best = middle, mask
            else:
                low = middle + 1
        return best

    def _result(self, is_minimal: bool) -> MinimalCircuit:
        assert self.best is not None
        mask = self.best.best
        return MinimalCircuit(
            components=self.objective.names(self.best.members()),
            explained=explained_on_splits(self.objective, mask),
            path=self.best.path,
            is_minimal=is_minimal,
            levels={**self.best.levels},
            beyond=self.best.beyond,
            dropped=self.objective.names(self.best.dropped[::-1]),
            starts=compare_starts(self.starts) if self.starts else None,
        )

    def _scrutinised(self, circuit: MinimalCircuit) -> MinimalCircuit:
        assert self.best is not None
        mask = self.best.best
        controls = run_controls(self.objective, mask, self.threshold, self.seed)
        stability: Stability | None = None
        if self._few:

            def find(weights: Weights) -> Tensor | None:
                search = self._joint_search(self._first_start(), weights)
                return None if search is None else search.best

            stability = bootstrap_stability(self.objective, mask, find, SAMPLES, self.seed)
        return replace(circuit, controls=controls, stability=stability)


def with_minimal(
    search: Search,
    what: str,
    objective: Objective,
    pooled: Tensor,
    prefix: PrefixCircuit,
    wanted: bool,
    within: Tensor | None = None,
) -> ComponentCircuit:
    """The prefix of a ranking, ranks int64 [m], and a minimal circuit beside it if one is wanted.

    Interrupted, raises `Interrupted` with as much of both as there is.
    """
    circuit = ComponentCircuit(objective.total, prefix)
    config = search.config
    if not wanted:
        return circuit
    with search.moving(what) as report:
        joint = MinimalSearch(
            objective,
            config.threshold,
            pooled.argsort(),
            prefix.needed,
            config.seed,
            config.scrutiny,
            report,
            within,
        )
        try:
            return replace(circuit, minimal=joint.run())
        except Interrupted as interrupt:
            raise Interrupted(replace(circuit, minimal=interrupt.partial)) from interrupt
        except KeyboardInterrupt as interrupt:
            raise Interrupted(circuit) from interrupt


def explained_on_splits(objective: Objective, mask: Tensor) -> Explained:
    """What a circuit, bool [m], explains on each split."""
    shares: dict[str, float] = {
        split: objective.explained(mask[None], split).item() for split in objective.effects
    }
    return Explained(**shares)
