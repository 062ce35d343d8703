"""How a circuit stands up to scrutiny: other starts, bootstrap samples of the prompts, and controls."""

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

import torch
from torch import Tensor

from edgewise.circuits.joint_search import JointSearch
from edgewise.circuits.minimal import Controls, Stability, Starts
from edgewise.circuits.objective import Objective, Weights
from edgewise.tasks.pairs import SEARCHED, Split

RANDOM_CIRCUITS = 20
CLIMBS = 16
"""Steps of a climb."""


def compare_starts(circuits: dict[str, Tensor]) -> Starts:
    """Circuits, bool [m], by what their searches started from."""
    sizes = [int(mask.sum()) for mask in circuits.values()]
    smallest = {tuple(mask.tolist()) for mask in circuits.values() if int(mask.sum()) == min(sizes)}
    pairs = [jaccard(a, b) for a, b in combinations(circuits.values(), 2)]
    return Starts([*circuits], sizes, len(smallest), fmean(pairs) if pairs else 1.0)


def bootstrap_stability(
    objective: Objective, circuit: Tensor, find: Callable[[Weights], Tensor | None], samples: int, seed: int
) -> Stability:
    """Search again, by `find`, on samples of the fit and the validation prompts, drawn with replacement."""
    generator = torch.Generator().manual_seed(seed)
    circuits = [mask for _ in range(samples) if (mask := find(_sample(objective, generator))) is not None]
    shares = [jaccard(circuit, mask) for mask in circuits]
    return Stability([int(mask.sum()) for mask in circuits], fmean(shares) if shares else 0.0)


def _sample(objective: Objective, generator: torch.Generator) -> Weights:
    weights: dict[Split, Tensor] = {}
    for split in SEARCHED:
        if split in objective.effects:
            n = len(objective.effects[split])
            weights[split] = torch.randint(n, (n,), generator=generator).bincount(minlength=n).float()
    return weights


def run_controls(objective: Objective, circuit: Tensor, threshold: float, seed: int) -> Controls:
    """What random circuits of equal size, the complement, and circuits for shuffled answers explain."""
    splits: tuple[Split, ...] = ("test", "validation", "fit")
    split: Split = next(name for name in splits if name in objective.effects)
    generator = torch.Generator().manual_seed(seed)
    random = torch.zeros(RANDOM_CIRCUITS, objective.total, dtype=torch.bool)
    for mask in random:
        mask[torch.randperm(objective.total, generator=generator)[: int(circuit.sum())]] = True
    shares = objective.explained(random, split)
    complement = objective.explained(~circuit[None], split).item()
    shuffled = JointSearch(objective.shuffled(seed), threshold)
    best, share = climb(shuffled.objective)
    is_explained = shuffled.start(best)
    if is_explained:
        shuffled.at_once = 0.1
        shuffled.eliminate()
        shuffled.polish()
    return Controls(
        random=shares.mean().item(),
        random_sd=shares.std().item(),
        complement=complement,
        shuffled_size=int(shuffled.best.sum()) if is_explained else None,
        shuffled=share,
    )


def climb(objective: Objective, steps: int = CLIMBS) -> tuple[Tensor, float]:
    """The mask that explains most, as far as exchanging components by their gradient leads from all and from none, and its
    share of the effect."""
    all_of_them = objective.candidates.cpu()
    ends = [
        _climb_from(objective, start, steps // 2) for start in (all_of_them, torch.zeros_like(all_of_them))
    ]
    return max(ends, key=lambda end: end[1])


def _climb_from(objective: Objective, best: Tensor, steps: int) -> tuple[Tensor, float]:
    share = objective.explained(best[None]).item()
    chunk, gradient = max(1, int(objective.candidates.sum()) // 4), None
    for _ in range(steps):
        if gradient is None:
            gradient = objective.gradient(best[None].float()).gradient[0].cpu()
        gain = torch.where(best, -gradient, gradient).masked_fill(~objective.candidates.cpu(), -torch.inf)
        order = gain.argsort(descending=True)[: max(1, int((gain > 0).sum()))]
        changed = best.clone()
        changed[order[:chunk]] ^= True
        explained = objective.explained(changed[None]).item()
        if explained > share:
            best, share, gradient = changed, explained, None
        elif chunk == 1:
            break
        else:
            chunk //= 2
    return best, share


def jaccard(a: Tensor, b: Tensor) -> float:  # bool [m] each
    """Components in both over components in either; 1 for two empty circuits."""
    either = int((a | b).sum())
    return int((a & b).sum()) / either if either else 1.0


def random_starts(objective: Objective, count: int, seed: int) -> Sequence[Tensor]:
    """Candidates without a random tenth of them each."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(count, objective.total, generator=generator) > 0.1
    return [*(kept & objective.candidates.cpu())]
