"""Transcoders, cross-layer or per layer: sparse features that reconstruct the outputs of a model's MLPs.

Layer l of L has an MLP with input x_l (after its norm) and output y_l, both of width D. Its F features

    h_l = W_enc_l x~_l + b_enc_l,       x~_l = input_scale_l x_l
    a_l = JumpReLU(h_l; theta_l),       h where h > theta, else 0

are decoded to the outputs of its own MLP and of all later ones, m = l..L-1:

    y^_m = output_scale_m (sum_{l <= m} W_dec_{l->m} a_l + b_dec_m)

A per-layer transcoder has the decoders to its own MLP alone, l = m: some L / 2 times fewer weights for as many features.

The scales are scalars calibrated before training: the mean norm of x~ is sqrt(D), and the mean variance of a coordinate of
y / output_scale is 1. So in these normalised units the mean squared error of a layer,

    mse_m = mean over tokens and coordinates of (y_m - y^_m)^2 / output_scale_m^2,

is the fraction of variance unexplained. With |W_dec_i| the norm of feature i's decoders to all layers, in the same units,
training minimises

    loss = sum_m w_m mse_m  +  l0 * sum tanh(4 a_i |W_dec_i|)  +  dead * sum relu(theta_i - h_i) |W_dec_i|

(sums over features of all layers, means over tokens). Weights w_m are 1, and more for MLPs whose errors cost the model's
predictions much (`activations.error_costs`): the variance of some is mostly one direction, and a small share of it is still
a large error. The second term approximates L0; it has a gradient in encoder and decoder. The third revives dead features and
has no gradient in the decoder. JumpReLU is discontinuous in theta, whose logarithm is learned with a rectangular kernel of
width 1 (`JumpReLU.backward`). Half of the training sequences have some heads intervened on (`disturbed.py`).

Pretrained models have *massive activations*: at the first token of a text one or two MLPs write a constant vector hundreds
of times as large as elsewhere, on which attention sinks rest. Its square would dominate the means above. An output whose
norm exceeds MASSIVE times the median of its layer is excluded from scales, errors and explained variance; it is not replaced
when MLPs are, and is an error node in a trace.
"""

import math
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.devices import upload
from edgewise.training.transcoder.config import Decoders

_HUB = "edgewise.training.transcoder.hub"
"""Imported when it is used: it imports this module."""
THRESHOLD = 0.03
"""Initial threshold."""
BANDWIDTH = 1.0
"""Width of the rectangular kernel of the thresholds' gradient."""
MASSIVE = 8.0
"""Ratio to the median norm of a layer's outputs above which an output is massive."""
STEEPNESS = 4.0
"""Slope of the L0 approximation: a feature counts as active from about a |W_dec| = 1 / STEEPNESS on."""


@dataclass(frozen=True)
class TranscoderInfo:
    """Sizes of a transcoder, the model it belongs to, its training and evaluation; config.json."""

    model: str
    """Name of the model that it was trained on."""
    gated: bool
    """Whether that is a sparse twin."""
    fingerprint: list[float]
    """One number per parameter of the model, to recognise it by (`store.fingerprint`)."""
    layers: int
    features: int
    """Per layer."""
    width: int
    decoders: Decoders = "cross-layer"
    massive: list[float] = field(default_factory=list)
    """Norm above which an output is massive, per layer; empty if the model has no massive activations."""
    training: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)

    def outputs_of(self, layer: int) -> range:
        """The layers whose MLP outputs the features of a layer write to."""
        return range(layer, self.layers if self.decoders == "cross-layer" else layer + 1)

    @property
    def n_decoders(self) -> int:
        """Decoders of all layers, [F, D] each."""
        return sum(len(self.outputs_of(layer)) for layer in range(self.layers))


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
        """With regard to h: 1 where the feature is active. With regard to theta: the jump at h = theta, smoothed by the
        rectangular kernel, -theta / BANDWIDTH for |h - theta| < BANDWIDTH / 2."""
        (g,), (h, theta) = grad_outputs, ctx.saved_tensors
        above = h - theta[:, None]
        far, off = above.abs() >= BANDWIDTH / 2, above <= 0
        return g.masked_fill(off, 0.0), -theta / BANDWIDTH * g.masked_fill(far, 0.0).sum(1)


class Transcoder(nn.Module):
    """Features of all layers of one model.

    >>> transcoder = edgewise.Transcoder.from_pretrained("user/gpt2-sparse-transcoder", model=model, revision="main")
    >>> transcoder.save_pretrained("runs/copy")
    >>> transcoder.push_to_hub("user/another-name")
    """

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        model: nn.Module | None = None,
        dtype: str | torch.dtype | None = None,
        device_map: str | torch.device | dict[str, Any] | None = None,
        **hub: Any,
    ) -> "Transcoder":
        """Read a transcoder from a folder or the hub; with a model, onto its device, and refused if it is of another one.
        `dtype` and `device_map` are those of a dense model, for one device; `hub` is `revision`, `token`, `cache_dir`,
        `local_files_only`, `force_download`, `subfolder`.
        """
        return import_module(_HUB).from_pretrained(name, model, dtype, device_map, **hub)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write config, weights and model card to a folder."""
        return import_module(_HUB).save_pretrained(self, folder)

    def push_to_hub(self, repo_id: str, **upload: Any) -> str:
        """Upload it with its model card; takes `private`, `token`, `revision`, `commit_message`, ...; gives the address."""
        return import_module(_HUB).push_to_hub(self, repo_id, **upload)

    def __init__(self, config: TranscoderInfo, seed: int = 0):
        super().__init__()
        self.config = config
        self.layers, self.features, self.width = config.layers, config.features, config.width
        L, F, D = self.layers, self.features, self.width
        generator = torch.Generator().manual_seed(seed)

        def uniform(*shape: int, bound: float) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * bound)

        self.encoder = uniform(L, F, D, bound=1 / math.sqrt(D))
        self.encoder_bias = nn.Parameter(torch.zeros(L, F))
        self.log_threshold = nn.Parameter(torch.full((L, F), math.log(THRESHOLD)))
        # per layer, the decoders to all layers that it writes to, side by side: one matrix product
        n_outputs = [len(self.outputs_of(l)) for l in range(L)]
        self.decoders = nn.ParameterList(
            uniform(F, n * D, bound=1 / math.sqrt(n_outputs[0] * D)) for n in n_outputs
        )
        self.decoder_bias = nn.Parameter(torch.zeros(L, D))
        self.input_scale: Tensor
        self.output_scale: Tensor
        self.register_buffer("input_scale", torch.ones(L))
        self.register_buffer("output_scale", torch.ones(L))

    def is_massive(self, y: Tensor, layer: int | slice = slice(None)) -> Tensor | None:  # [L, n, D] -> [L, n]
        """Which MLP outputs are massive; None if this model has none. For one layer, [..., D] -> [...]."""
        if not self.config.massive:
            return None
        limit = upload(torch.tensor(self.config.massive), y.device)[layer]
        return torch.linalg.vector_norm(y, dim=-1) > (limit[:, None] if limit.ndim else limit)

    def outputs_of(self, layer: int) -> range:
        """The layers whose MLP outputs this layer's features write to."""
        return self.config.outputs_of(layer)

    @property
    def threshold(self) -> Tensor:  # [L, F]
        return self.log_threshold.exp()

    def preactivations(self, x: Tensor) -> Tensor:  # [L, n, D] -> [L, n, F]
        """h, given the MLPs' inputs."""
        scaled = x * self.input_scale[:, None, None]
        return torch.baddbmm(self.encoder_bias[:, None], scaled, self.encoder.mT)

    def encode(self, x: Tensor) -> Tensor:  # [L, n, D] -> [L, n, F]
        """Feature activations a, given the MLPs' inputs."""
        return self.activate(self.preactivations(x))

    def activate(self, h: Tensor) -> Tensor:  # [L, n, F] -> [L, n, F]
        activations: Tensor = JumpReLU.apply(h, self.threshold)  # pyright: ignore
        return activations

    def decode(self, a: Tensor) -> Tensor:  # [L, n, F] -> [L, n, D]
        """Reconstructions y^ of the MLPs' outputs."""
        return self.normalised(a) * self.output_scale[:, None, None]

    def normalised(self, a: Tensor) -> Tensor:  # [L, n, F] -> [L, n, D]
        """The same in normalised units, y^ / output_scale."""
        outputs = list(self.decoder_bias[:, None].unbind())
        for l in range(self.layers):
            written = (a[l] @ self.decoders[l]).unflatten(1, (-1, self.width)).unbind(1)
            for m, contribution in zip(self.outputs_of(l), written, strict=True):
                outputs[m] = outputs[m] + contribution
        return torch.stack(outputs)

    @property
    def decoder_norms(self) -> Tensor:  # [L, F]
        """|W_dec|: norm of each feature's decoders to all layers, in normalised units."""
        return torch.stack([torch.linalg.vector_norm(decoder, dim=1) for decoder in self.decoders])

    def reads(self, layer: int) -> tuple[Tensor, Tensor]:  # -> [F, D], [F]
        """The encoder in the model's own units: h = x W^T + b."""
        return self.encoder[layer] * self.input_scale[layer], self.encoder_bias[layer]

    def writes(self, layer: int) -> Tensor:  # -> [F, n_outputs, D]
        """Decoders in the model's own units: what a feature of activation 1 adds to each MLP output that it writes to."""
        outputs = self.outputs_of(layer)
        return (
            self.decoders[layer].unflatten(1, (-1, self.width))
            * self.output_scale[outputs.start : outputs.stop, None]
        )

    def writes_to(self, later: int, layer: int, features: Tensor) -> Tensor:  # int64 [n] -> [n, D]
        """Decoders of some features to one of those layers."""
        decoder = self.decoders[layer].unflatten(1, (-1, self.width))
        return decoder[features, later - layer] * self.output_scale[later]

    @property
    def output_bias(self) -> Tensor:  # [L, D]
        """Reconstruction where no feature is active."""
        return self.decoder_bias * self.output_scale[:, None]
