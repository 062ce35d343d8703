"""What a joint search asks of components, heads or edges alike: the effect that circuits explain, and its gradient."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.tasks.pairs import SEARCHED, Split

Weights = Mapping[Split, Tensor]
"""Weights of the prompts of a split, [n]; those of a split that is missing are all 1."""


Levels = Mapping[Split, float]
"""Least share of the effect that is asked of a split's prompts; of a split that is missing, none."""


class MaskGradient(NamedTuple):
    """Share of the effect that circuits explain on the fit prompts, and its gradient with regard to their masks."""

    explained: Tensor  # [copies]
    gradient: Tensor  # [copies, m]


class Objective(ABC):
    """m components of one model on a task's prompts. A circuit is a mask: components in it are computed, all others have
    their corrupt activation. What circuits recover is remembered: searches meet the same ones again.

    Masks, and all that is returned, are on the CPU, where searches take them apart; the model may be elsewhere."""

    total: int
    """m."""
    effects: dict[Split, Tensor]
    """Clean minus corrupt metric of the prompts of each split, [n]; a split without prompts is missing."""
    candidates: Tensor
    """Bool [m]: components whose clean and corrupt activations differ. The others, such as a twin's closed heads, change
    nothing when they are dropped from all components."""

    def __init__(self) -> None:
        self._recovered: dict[tuple[Split, bytes], Tensor] = {}

    @abstractmethod
    def names(self, components: Sequence[int]) -> list[str]:
        """Names of components, given their numbers."""

    @abstractmethod
    def gradient(
        self, masks: Tensor, weights: Tensor | None = None, wanted: Tensor | None = None
    ) -> MaskGradient:
        """The gradient at masks, [copies, m], whose values may lie between 0 and 1: a component of 0.3 has 0.3 of its
        computed and 0.7 of its corrupt activation.

        weights: Of the fit prompts, [n] (see `explained`); those of weight 0 are not computed.
        wanted: Components whose gradient is wanted, bool [m], all if not given; that of others may be 0.
        """

    @abstractmethod
    def shuffled(self, seed: int) -> "Objective":
        """The same fit prompts with answers of other prompts (`tasks.pairs.shuffle_answers`), without other splits.
        `effects` stays the real one, so that what is explained is a share of the real effect."""

    @abstractmethod
    def compute(self, masks: Tensor, split: Split) -> Tensor:  # bool [copies, m] -> [copies, n]
        """Metric of each circuit less that of the corrupt run. In chunks that fit into memory; circuits that share their
        first layers share their computation."""

    @property
    def evaluated(self) -> int:
        """Circuits that were computed, on one split or another."""
        return len(self._recovered)

    def recovered(self, masks: Tensor, split: Split) -> Tensor:  # bool [copies, m] -> [copies, n]
        """`compute`, of circuits that were not computed before."""
        keys: list[tuple[Split, bytes]] = [(split, mask.cpu().numpy().tobytes()) for mask in masks]
        new = {key: number for number, key in enumerate(keys) if key not in self._recovered}
        if new:
            computed = self.compute(masks[[*new.values()]], split)
            self._recovered.update(zip(new, computed, strict=True))
        return torch.stack([self._recovered[key] for key in keys])

    def explained(
        self, masks: Tensor, split: Split = "fit", weights: Weights | None = None
    ) -> Tensor:  # bool [copies, m] -> [copies]
        """Share of the mean effect; `weights`, of the prompts, make it that of a sample."""
        weight = (weights or {}).get(split)
        return weighted_share(self.recovered(masks, split), self.effects[split], weight)

    def explained_enough(
        self, masks: Tensor, threshold: float | Levels, weights: Weights | None = None
    ) -> tuple[Tensor, Tensor]:  # bool [copies, m] -> [copies], bool [copies]
        """Share of the effect on the fit prompts, and whether it reaches the threshold, on the validation prompts too; or
        the level of each split that has one. Prompts are not computed where those before have decided."""
        levels = threshold if isinstance(threshold, Mapping) else dict.fromkeys(SEARCHED, threshold)
        shares = self.explained(masks, "fit", weights)
        enough = shares >= levels["fit"]
        for split in levels:
            if split != "fit" and split in self.effects and enough.any():
                enough[enough.clone()] = self.explained(masks[enough], split, weights) >= levels[split]
        return shares, enough


def weighted_share(recovered: Tensor, effect: Tensor, weights: Tensor | None = None) -> Tensor:
    """Share of the mean effect, [n], that is recovered, [..., n] -> [...]."""
    weights = torch.ones_like(effect) if weights is None else weights.to(effect)
    return (recovered * weights).sum(-1) / (effect * weights).sum()


def majority(masks: Tensor) -> Tensor:  # bool [copies, m] -> bool [m]
    """The mask that each component's majority gives: of circuits that each lack one component, the whole."""
    return masks.float().mean(0) > 0.5
