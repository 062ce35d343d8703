"""Evaluate a transcoder on held-out text."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data import IGNORE, Batch
from edgewise.measure.forward import eval_mode, run_model, sequences_per_pass
from edgewise.measure.loss import cross_entropy
from edgewise.models.architecture import vocabulary_size
from edgewise.training.transcoder.activations import record_mlps, replaced_mlps
from edgewise.training.transcoder.transcoder import Transcoder

_TOKENS_AT_A_TIME = 512


@dataclass(frozen=True)
class TranscoderEvaluation:
    """Per-layer reconstruction metrics, and the model's loss when the transcoder replaces all its MLPs."""

    explained_variance: list[float]
    """1 - ||y - y^||^2 / ||y - mean||^2 per layer, without massive outputs."""
    l0: list[float]
    """Active features per token, in each layer."""
    dead: list[float]
    """Share of each layer's features that are active on no token."""
    loss: float
    """Of the model itself, in nats per token."""
    replaced_loss: float
    """With all MLPs replaced; features read the residual stream that the replacements write."""
    tokens: int
    massive: float = 0.0
    """Share of MLP outputs that are massive, which is not explained."""

    @property
    def difference(self) -> float:
        return self.replaced_loss - self.loss

    @property
    def mean_explained_variance(self) -> float:
        return sum(self.explained_variance) / len(self.explained_variance)

    @property
    def mean_l0(self) -> float:
        return sum(self.l0) / len(self.l0)

    def to_dict(self) -> dict[str, Any]:
        means = {"mean_explained_variance": self.mean_explained_variance, "mean_l0": self.mean_l0}
        return {**asdict(self), "difference": self.difference, **means}


class Fit:
    """Explained variance and active features, accumulated over batches."""

    def __init__(self, transcoder: Transcoder):
        self.transcoder = transcoder
        L, F, D = transcoder.layers, transcoder.features, transcoder.width
        # accumulated in double precision on the CPU: some devices have none
        self.tokens = 0
        self.ordinary = torch.zeros(L, dtype=torch.float64)  # tokens whose output is not massive
        self.error, self.square = torch.zeros(2, L, dtype=torch.float64)
        self.sum = torch.zeros(L, D, dtype=torch.float64)
        self.active = torch.zeros(L, F, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor) -> None:  # [L, n, D], [L, n, D]
        """Add a batch, a part at a time: features of all tokens at once would take more memory than a training step."""
        for part in zip(x.split(_TOKENS_AT_A_TIME, 1), y.split(_TOKENS_AT_A_TIME, 1), strict=True):
            self._add(*part)

    @torch.no_grad()
    def _add(self, x: Tensor, y: Tensor) -> None:
        a = self.transcoder.encode(x)
        error = y - self.transcoder.decode(a)
        if (massive := self.transcoder.is_massive(y)) is not None:
            error, y = (x.masked_fill(massive[..., None], 0.0) for x in (error, y))
        self.ordinary += y.shape[1] if massive is None else (~massive).sum(1).cpu()
        self.error += error.square().sum((1, 2)).cpu()
        self.square += y.square().sum((1, 2)).cpu()
        self.sum += y.sum(1).cpu()
        self.active += (a > 0).sum(1).cpu()
        self.tokens += y.shape[1]

    @property
    def explained_variance(self) -> Tensor:  # [L]
        variance = self.square - self.sum.square().sum(1) / self.ordinary.clamp_min(1)
        return 1 - self.error / variance

    @property
    def massive(self) -> float:
        return 1 - (self.ordinary / self.tokens).mean().item()

    @property
    def l0(self) -> Tensor:  # [L]
        return self.active.sum(1) / self.tokens

    @property
    def dead(self) -> Tensor:  # [L]
        return (self.active == 0).double().mean(1)


@torch.no_grad()
def evaluate_transcoder(model: nn.Module, transcoder: Transcoder, batch: Batch) -> TranscoderEvaluation:
    """Evaluate a transcoder on a batch.

    >>> evaluate_transcoder(model, load_transcoder("runs/transcoder", model), data.held_out).explained_variance
    """
    device = next(model.parameters()).device
    fit, losses, n_targets = Fit(transcoder), torch.zeros(2, dtype=torch.float64), 0
    with eval_mode(model):
        for micro_batch in batch.micro_batches(sequences_per_pass(batch, vocabulary_size(model)), device):
            with record_mlps(model) as record:
                losses[0] += cross_entropy(run_model(model, micro_batch), micro_batch.targets).item()
            fit.add(*record.x_and_y)
            n_targets += int((micro_batch.targets != IGNORE).sum())
            with replaced_mlps(model, transcoder):
                losses[1] += cross_entropy(run_model(model, micro_batch), micro_batch.targets).item()
    if not n_targets:
        raise EdgewiseError("the held-out text has no token to predict")
    loss, replaced = (losses / n_targets).tolist()
    explained, l0, dead = (x.tolist() for x in (fit.explained_variance, fit.l0, fit.dead))
    return TranscoderEvaluation(explained, l0, dead, loss, replaced, n_targets, fit.massive)
