"""Norms as linear functions: gain and shift of a layer norm or RMS norm, with its denominator frozen."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgewise.core.errors import UnsupportedArchitecture

TOLERANCE = 1e-3
"""Relative; what another kind of norm does shows up as far more."""


@dataclass(frozen=True)
class NormParameters:
    """y = gain * (x - mean x, if centred) / sigma(x) + shift."""

    gain: Tensor  # [D]
    centred: bool
    shift: Tensor  # [D]

    def scale(self, x: Tensor, y: Tensor) -> Tensor:  # [..., D] twice -> [..., D]
        """gain / sigma, from an input of the norm and its output."""
        unscaled = self.gain * self.centre(x)
        inverse = ((y - self.shift) * unscaled).sum(-1) / (unscaled * unscaled).sum(-1).clamp_min(1e-30)
        return self.gain * inverse[..., None]

    def centre(self, x: Tensor) -> Tensor:  # [..., D]
        return x - x.mean(-1, keepdim=True) if self.centred else x


@torch.no_grad()
def norm_parameters(norm: nn.Module, like: Tensor) -> NormParameters:  # [..., D]
    """Tell a layer norm from an RMS norm, and its gain and shift, by its response to two probes."""
    probe = torch.full_like(like.reshape(-1, like.shape[-1])[:1], 1e3)  # [1, D]
    if isinstance(norm, nn.Identity):
        return NormParameters(torch.ones_like(probe[0]), False, torch.zeros_like(probe[0]))
    probe[:, 1::2] *= -1
    plus, minus = norm(probe)[0], norm(-probe)[0]
    shift, gain = (plus + minus) / 2, (plus - minus) / 2 * probe[0].sign()
    # a layer norm ignores a constant (an odd width has a mean of its own: far less)
    moved = norm(probe + 1e3)[0] - plus
    return NormParameters(gain, bool(moved.abs().max() < 0.1 * gain.abs().max()), shift)


def check_norm(
    norm: nn.Module, parameters: NormParameters, x: Tensor, y: Tensor, tolerance: float = TOLERANCE
) -> None:
    """Refuse what is neither a layer norm nor an RMS norm, by an input and its output, [..., D]."""
    error = (parameters.scale(x, y) * parameters.centre(x) + parameters.shift - y).abs().max()
    if not error < tolerance * y.abs().max().clamp_min(1e-30):
        raise UnsupportedArchitecture(
            f"{type(norm).__name__} is neither a layer norm nor an RMS norm, so what passes it cannot be split; "
            "circuits of heads work (`edges=False`)"
        )
