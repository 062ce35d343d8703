"""Cross-layer transcoders: what the MLPs of a model do, said by features of which few are active at a time.

Layer l of L has an MLP that reads x_l (after its norm) and gives y_l, both of width D. Its F features

    h_l = W_enc_l x~_l + b_enc_l,       x~_l = input_scale_l x_l
    a_l = JumpReLU(h_l; theta_l),       h where h > theta, else 0

write to the outputs of its own MLP and of all later ones, m = l..L-1:

    y^_m = output_scale_m (sum_{l <= m} W_dec_{l->m} a_l + b_dec_m)

The scales are numbers, measured before training: input_scale makes the mean norm of x~ sqrt(D), output_scale makes 1 the
mean variance of a coordinate of y / output_scale. So in these normalised units the mean square error of a layer,

    mse_m = mean over tokens and coordinates of (y_m - y^_m)^2 / output_scale_m^2,

is the share of variance that is left unexplained. With |W_dec_i| the norm of all that feature i writes, in the same units,
training minimises

    loss = sum_m w_m mse_m  +  l0 * sum tanh(4 a_i |W_dec_i|)  +  dead * sum relu(theta_i - h_i) |W_dec_i|

(sums over features of all layers, means over tokens). Weights w_m are 1, and more for an MLP that wrote a large share of the
variance in the residual stream after it, because all that is read later has its errors. The second term counts features that
are active, if only just less than fully where they hardly write anything; it reaches encoder and decoder. The third pulls up
what is never active, and leaves what it writes alone. A step function has no slope: theta learns (as its logarithm) through
a rectangle of width 1 around it, `JumpReLU.backward`.

Pretrained models have *massive* outputs: at the first token of a text an MLP or two give something hundreds of times as
large as anywhere else, always the same, on which attention sinks rest. Its square would be all that counts in the means
above. Where an output's norm exceeds MASSIVE times the median of its layer, it is left alone: out of scales, errors and
explained variance, not replaced where MLPs are, and in a trace an error.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

THRESHOLD = 0.03
"""Where thresholds start."""
BANDWIDTH = 1.0
MASSIVE = 8.0
"""Times the median norm of a layer's outputs: beyond, one is not for features to explain."""
STEEPNESS = 4.0
"""c: from a |W_dec| = 1/c on, a feature counts as active."""


@dataclass(frozen=True)
class TranscoderInfo:
    """What a transcoder is and how it was made; config.json."""

    model: str
    """The name of the model that it explains."""
    gated: bool
    """Whether that is a sparse twin."""
    fingerprint: list[float]
    """A number for each of the model's parameters, by which it is known again (`store.fingerprint`)."""
    layers: int
    features: int
    """Of each layer."""
    width: int
    massive: list[float] = field(default_factory=list)
    """Of each layer, the norm above which an output is left alone; empty if the model has no such outputs."""
    training: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)


def massive_limits(y: Tensor) -> Tensor:  # [L, n, D] -> [L]
    """The norms above which outputs are massive."""
    return MASSIVE * torch.linalg.vector_norm(y, dim=2).median(1).values


class JumpReLU(torch.autograd.Function):
    """h where h > theta, else 0."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, theta: Tensor) -> Tensor:  # [L, n, F], [L, F] -> [L, n, F]
        ctx.save_for_backward(h, theta)
        return h.masked_fill(h <= theta[:, None], 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Towards h, the slope where it is active. Towards theta, the jump of size theta that is lost where h is passed by,
        spread over a rectangle: -theta / width for |h - theta| < width / 2."""
        (g,), (h, theta) = grad_outputs, ctx.saved_tensors
        above = h - theta[:, None]
        far, off = above.abs() >= BANDWIDTH / 2, above <= 0
        return g.masked_fill(off, 0.0), -theta / BANDWIDTH * g.masked_fill(far, 0.0).sum(1)


class Transcoder(nn.Module):
    """Features of all layers of one model."""

    def __init__(self, config: TranscoderInfo, seed: int = 0):
        super().__init__()
        self.config = config
        self.layers, self.features, self.width = config.layers, config.features, config.width
        L, F, D = self.layers, self.features, self.width
        draw = torch.Generator().manual_seed(seed)

        def uniform(*shape: int, most: float) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(shape, generator=draw) - 1) * most)

        self.encoder = uniform(L, F, D, most=1 / math.sqrt(D))
        self.encoder_bias = nn.Parameter(torch.zeros(L, F))
        self.log_threshold = nn.Parameter(torch.full((L, F), math.log(THRESHOLD)))
        # of each layer, what its features write to all layers from its own on, side by side: one matrix product
        self.decoders = nn.ParameterList(uniform(F, (L - l) * D, most=1 / math.sqrt(L * D)) for l in range(L))
        self.decoder_bias = nn.Parameter(torch.zeros(L, D))
        self.input_scale: Tensor
        self.output_scale: Tensor
        self.register_buffer("input_scale", torch.ones(L))
        self.register_buffer("output_scale", torch.ones(L))

    def is_massive(self, y: Tensor, layer: int | slice = slice(None)) -> Tensor | None:  # [L, n, D] -> [L, n]
        """Which outputs of the MLPs are left alone; None if this model has none. Of one layer, [..., D] -> [...]."""
        if not self.config.massive:
            return None
        limit = torch.tensor(self.config.massive, device=y.device)[layer]
        return torch.linalg.vector_norm(y, dim=-1) > (limit[:, None] if limit.ndim else limit)

    @property
    def threshold(self) -> Tensor:  # [L, F]
        return self.log_threshold.exp()

    def preactivations(self, x: Tensor) -> Tensor:  # [L, n, D] -> [L, n, F]
        """h, from what the MLPs read."""
        scaled = x * self.input_scale[:, None, None]
        return torch.baddbmm(self.encoder_bias[:, None], scaled, self.encoder.mT)

    def encode(self, x: Tensor) -> Tensor:  # [L, n, D] -> [L, n, F]
        """How active each feature is, from what the MLPs read."""
        return self.activate(self.preactivations(x))

    def activate(self, h: Tensor) -> Tensor:  # [L, n, F] -> [L, n, F]
        activations: Tensor = JumpReLU.apply(h, self.threshold)  # pyright: ignore
        return activations

    def decode(self, a: Tensor) -> Tensor:  # [L, n, F] -> [L, n, D]
        """What the MLPs should give, from all features."""
        return self.normalised(a) * self.output_scale[:, None, None]

    def normalised(self, a: Tensor) -> Tensor:  # [L, n, F] -> [L, n, D]
        """The same, in the units of training."""
        given = list(self.decoder_bias[:, None].unbind())
        for l in range(self.layers):
            written = (a[l] @ self.decoders[l]).unflatten(1, (-1, self.width)).unbind(1)
            for m, part in enumerate(written, l):
                given[m] = given[m] + part
        return torch.stack(given)

    @property
    def decoder_norms(self) -> Tensor:  # [L, F]
        """|W_dec|: the norm of all that a feature writes, in the units of training."""
        return torch.stack([torch.linalg.vector_norm(decoder, dim=1) for decoder in self.decoders])

    def reads(self, layer: int) -> tuple[Tensor, Tensor]:  # -> [F, D], [F]
        """The encoder in the model's own units: h = x W^T + b."""
        return self.encoder[layer] * self.input_scale[layer], self.encoder_bias[layer]

    def writes(self, layer: int) -> Tensor:  # -> [F, L - layer, D]
        """What one unit of each feature adds to the outputs of the MLPs of this layer and all later ones."""
        return self.decoders[layer].unflatten(1, (-1, self.width)) * self.output_scale[layer:, None]

    def writes_to(self, later: int, layer: int, features: Tensor) -> Tensor:  # int64 [n] -> [n, D]
        """The same, of some features and for one of those layers."""
        decoder = self.decoders[layer].unflatten(1, (-1, self.width))
        return decoder[features, later - layer] * self.output_scale[later]

    @property
    def output_bias(self) -> Tensor:  # [L, D]
        """What the MLPs should give where no feature is active."""
        return self.decoder_bias * self.output_scale[:, None]
