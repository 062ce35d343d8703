"""The training loss of a transcoder and the schedules of its terms; the equations are at the top of `transcoder.py`."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from edgewise.training.transcoder.transcoder import STEEPNESS, Transcoder

DEAD_COEFFICIENT = 1e-5
"""Weight of the dead-feature penalty."""
THRESHOLD_LR_RATIO = 0.1
"""Learning rate of thresholds over that of the weights. At the full rate they rise above all that some features reach."""
OUTPUT_WEIGHT = 2.5
"""Additional weight of the error of the layer whose errors cost the model's predictions as much as the median layer's."""
MOST_COSTLY = 100.0
"""Largest ratio to the median layer's cost that is followed."""
RAMP_FRACTION = 0.7
"""Fraction of the run over which the sparsity coefficient rises linearly to its final value."""
WARMUP_STEPS = 1000
"""Steps of linear warm-up, at most a twentieth of the run."""
DECAY_FRACTION = 0.2
"""Fraction of the run over which the learning rate falls to zero."""


class Loss(NamedTuple):
    total: Tensor  # []
    mse: Tensor  # [L], without gradient
    l0: Tensor  # [L], active features per token


class TranscoderObjective(nn.Module):
    """A transcoder's loss as a module, which distributed training wraps."""

    def __init__(self, transcoder: Transcoder, costs: Tensor):  # [L]
        """`costs`: what errors of each layer cost the model's predictions (`activations.error_costs`)."""
        super().__init__()
        self.transcoder = transcoder
        self.weight: Tensor
        self.register_buffer("weight", layer_weights(costs))

    def forward(self, x: Tensor, y: Tensor, l0_coefficient: float) -> Loss:  # [L, n, D], [L, n, D]
        transcoder, n = self.transcoder, x.shape[1]
        h, norms = transcoder.preactivations(x), transcoder.decoder_norms
        a = transcoder.activate(h)
        error = transcoder.normalised(a) - y / transcoder.output_scale[:, None, None]
        mse = error.square().mean(2)
        if (massive := transcoder.is_massive(y)) is not None:
            mse = mse.masked_fill(massive, 0.0) * (n / (~massive).sum(1).clamp_min(1))[:, None]
        mse = mse.mean(1)
        sparsity = torch.tanh(a * (STEEPNESS * norms)[:, None]).sum() / n
        # acts on h and theta only: the decoder of a feature that is never active must not shrink
        dead = (torch.relu(transcoder.threshold[:, None] - h).sum(1) * norms.detach()).sum() / n
        total = self.weight @ mse + l0_coefficient * sparsity + DEAD_COEFFICIENT * dead
        return Loss(total, mse.detach(), a.detach().count_nonzero((1, 2)) / n)


def layer_weights(costs: Tensor) -> Tensor:  # [L] -> [L]
    """Weight of each layer's error; the same for all if all cost the same."""
    return 1 + OUTPUT_WEIGHT * (costs / costs.median().clamp_min(1e-30)).clamp_max(MOST_COSTLY)


def l0_coefficient(step: int, steps: int, final: float, ramped: bool = True) -> float:
    """Sparsity coefficient at a step."""
    return final * min(1.0, step / (RAMP_FRACTION * steps)) if ramped else final


def learning_rate_factor(step: int, steps: int) -> float:
    """Share of the peak learning rate: linear warm-up, constant, linear decay to zero."""
    warmup = (step + 1) / max(1.0, min(WARMUP_STEPS, steps / 20))
    decay = (steps - step) / max(1.0, DECAY_FRACTION * steps)
    return min(1.0, warmup, decay)
