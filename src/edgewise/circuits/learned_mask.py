"""A learned mask over components: the warm start of a joint search among hundreds or thousands of them.

Each component has a hard-concrete gate (Louizos et al. 2018): u uniform, s = sigmoid((logit u + a) / temperature), stretched
to [-0.1, 1.1] and clipped to [0, 1], so that it is exactly 0 or 1 most of the time. Minimised is

    fit + beta * log(expected number of open gates)      fit = max(0, 1 - explained)

where beta is the multiplier of the constraint explained >= threshold, the one that post-training uses (`multiplier.py`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.circuits.objective import MaskGradient
from edgewise.training.sparsify.multiplier import Multiplier

LOW, HIGH, TEMPERATURE = -0.1, 1.1, 2 / 3
_BIAS = TEMPERATURE * math.log(-LOW / HIGH)

Gradient = Callable[[Tensor], MaskGradient]
"""Of masks, [copies, m]."""


@dataclass(frozen=True)
class MaskTraining:
    """How a mask is learned."""

    steps: int = 80
    learning_rate: float = 0.3
    copies: int = 1
    """Samples of the mask in each step."""
    start: float = 2.5
    """Parameter of all gates at the start: open in 99 of 100 samples. Gates that are wider open have no gradient."""
    beta: float = 0.3
    step_size: float = 0.1
    damping: float = 1.0
    tolerance: float = 0.8
    """Share of the constraint's slack that the mask is trained to: exact circuits lose a little when noise goes."""
    prompts: int = 8
    """Fit prompts in each step, drawn anew: more prompts cost no more."""
    seed: int = 0


def learn_mask(
    gradient: Gradient,
    members: Tensor,  # bool [m]
    threshold: float,
    training: MaskTraining,
    report: Callable[[int, float], object] = lambda size, explained: None,
) -> Tensor:  # -> int64: members, those that are needed most first
    """Learn which of the members are needed to explain the threshold's share of the effect."""
    generator = torch.Generator().manual_seed(training.seed)
    numbers = members.nonzero()[:, 0]
    log_alpha = torch.full((len(numbers),), training.start, requires_grad=True)
    adam = torch.optim.Adam([log_alpha], lr=training.learning_rate, betas=(0.9, 0.95))
    multiplier = Multiplier(
        training.beta, training.step_size, minimum=1e-2, maximum=100.0, damping=training.damping, decay=0.8
    )
    tolerance = training.tolerance * (1 - threshold)
    for _ in range(training.steps):
        noise = torch.rand(training.copies, len(numbers), generator=generator).clamp(1e-4, 1 - 1e-4)
        mask = hard_concrete(log_alpha, noise)
        whole = torch.zeros(training.copies, len(members)).index_copy(1, numbers, mask.detach())
        explained, of_mask = gradient(whole.to(members.device))
        missing = explained < 1  # a circuit that explains more than 1 gains nothing by explaining more still
        push = (of_mask * missing[:, None]).cpu().float()[:, numbers] / training.copies
        size = expected_size(log_alpha)
        loss = multiplier.beta * size.log() - (mask * push).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
        multiplier.update(1 - min(1.0, explained.mean().item()), tolerance)
        report(round(size.item()), explained.mean().item())
    return numbers[log_alpha.detach().argsort(descending=True)]


def hard_concrete(log_alpha: Tensor, noise: Tensor) -> Tensor:  # [m], [copies, m] in (0, 1) -> [copies, m]
    """Samples of gates; with noise 1/2 their median."""
    stretched = torch.sigmoid((noise.logit() + log_alpha) / TEMPERATURE) * (HIGH - LOW) + LOW
    return stretched.clamp(0, 1)


def expected_size(log_alpha: Tensor) -> Tensor:  # [m] -> []
    """Expected number of gates that are not 0."""
    return torch.sigmoid(log_alpha - _BIAS).sum()
