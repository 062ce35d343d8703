"""What training minimises; the equations are at the top of `transcoder.py`."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from edgewise.training.transcoder.transcoder import STEEPNESS, Transcoder

DEAD = 1e-5
"""Weight of the pull on features that are not active."""
THRESHOLD_RATE = 0.1
"""Learning rate of thresholds, in shares of the weights'. At the full rate they rise past all that some features reach."""
STREAM = 5.0
"""By how much an MLP that wrote all of the stream after it counts more than one that wrote hardly any."""
RAMP = 0.7
"""Share of the run over which the price of active features rises to its full height."""
WARMUP = 1000
"""Steps, or a twentieth of a run that is shorter than twenty times as many."""
DECAY = 0.2
"""Share of the run over which the learning rate falls to zero."""


class Loss(NamedTuple):
    total: Tensor  # []
    mse: Tensor  # [L], without gradient
    l0: Tensor  # [L], active features of a token


class Objective(nn.Module):
    """A transcoder's loss as a module, which is what distributed training wraps."""

    def __init__(self, transcoder: Transcoder, shares: Tensor):  # [L]
        super().__init__()
        self.transcoder = transcoder
        self.weight: Tensor
        self.register_buffer("weight", 1 + STREAM * shares)

    def forward(self, x: Tensor, y: Tensor, l0: float) -> Loss:  # [L, n, D], [L, n, D]
        transcoder, n = self.transcoder, x.shape[1]
        h, norms = transcoder.preactivations(x), transcoder.decoder_norms
        a = transcoder.activate(h)
        error = transcoder.normalised(a) - y / transcoder.output_scale[:, None, None]
        mse = error.square().mean(2)
        if (massive := transcoder.is_massive(y)) is not None:
            mse = mse.masked_fill(massive, 0.0) * (n / (~massive).sum(1).clamp_min(1))[:, None]
        mse = mse.mean(1)
        active = torch.tanh(a * (STEEPNESS * norms)[:, None]).sum() / n
        # pulls on h and theta only: a feature that is never active should not lose what it writes
        inactive = (torch.relu(transcoder.threshold[:, None] - h).sum(1) * norms.detach()).sum() / n
        total = self.weight @ mse + l0 * active + DEAD * inactive
        return Loss(total, mse.detach(), a.detach().count_nonzero((1, 2)) / n)


def price(step: int, steps: int, l0: float, ramped: bool = True) -> float:
    """What an active feature costs at a step."""
    return l0 * min(1.0, step / (RAMP * steps)) if ramped else l0


def rate_share(step: int, steps: int) -> float:
    """The share of the highest learning rate: linear up, level, linear down to nothing."""
    up = (step + 1) / max(1.0, min(WARMUP, steps / 20))
    down = (steps - step) / max(1.0, DECAY * steps)
    return min(1.0, up, down)
