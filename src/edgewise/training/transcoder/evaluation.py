"""How well a transcoder explains a model's MLPs on held-out text."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data import IGNORE, Batch
from edgewise.measure.evaluation import (
    cross_entropy,
    evaluating,
    parts,
    rows_at_once,
    run_model,
    vocabulary_of,
)
from edgewise.training.transcoder.activations import noting_mlps, replaced_mlps
from edgewise.training.transcoder.transcoder import Transcoder


@dataclass(frozen=True)
class TranscoderEvaluation:
    """Figures of each layer, and what becomes of the model's loss when the transcoder replaces all its MLPs."""

    explained_variance: list[float]
    """1 - ||y - y^||^2 / ||y - mean||^2 of each layer, over what is not massive."""
    l0: list[float]
    """Active features of a token, in each layer."""
    dead: list[float]
    """Share of each layer's features that were active on no token."""
    loss: float
    """The model's own, in nats per token."""
    replaced_loss: float
    """With all MLPs replaced; features read the stream that the replacements make."""
    tokens: int
    massive: float = 0.0
    """Share of outputs, over layers, that are too large to be explained, and are not."""

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
    """Explained variance and active features, added up over pieces of text."""

    def __init__(self, transcoder: Transcoder):
        self.transcoder = transcoder
        L, F, D = transcoder.layers, transcoder.features, transcoder.width
        device = transcoder.encoder.device
        self.tokens = 0
        self.explained = torch.zeros(L, dtype=torch.float64, device=device)  # tokens that are to be
        self.error, self.square = torch.zeros(2, L, dtype=torch.float64, device=device)
        self.sum = torch.zeros(L, D, dtype=torch.float64, device=device)
        self.active = torch.zeros(L, F, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, x: Tensor, y: Tensor) -> None:  # [L, n, D], [L, n, D]
        a = self.transcoder.encode(x)
        error, y = (y - self.transcoder.decode(a)).double(), y.double()
        if (massive := self.transcoder.is_massive(y)) is not None:
            error, y = (each.masked_fill(massive[..., None], 0.0) for each in (error, y))
        self.explained += y.shape[1] if massive is None else (~massive).sum(1)
        self.error += error.square().sum((1, 2))
        self.square += y.square().sum((1, 2))
        self.sum += y.sum(1)
        self.active += (a > 0).sum(1)
        self.tokens += y.shape[1]

    @property
    def explained_variance(self) -> Tensor:  # [L]
        variance = self.square - self.sum.square().sum(1) / self.explained.clamp_min(1)
        return 1 - self.error / variance

    @property
    def massive(self) -> float:
        return 1 - (self.explained / self.tokens).mean().item()

    @property
    def l0(self) -> Tensor:  # [L]
        return self.active.sum(1) / self.tokens

    @property
    def dead(self) -> Tensor:  # [L]
        return (self.active == 0).double().mean(1)


@torch.no_grad()
def evaluate_transcoder(model: nn.Module, transcoder: Transcoder, batch: Batch) -> TranscoderEvaluation:
    """Measure a transcoder on rows of tokens.

    >>> evaluate_transcoder(model, load_transcoder("runs/transcoder", model), data.held_out).explained_variance
    """
    device = next(model.parameters()).device
    fit, losses, asked = Fit(transcoder), torch.zeros(2, dtype=torch.float64), 0
    with evaluating(model):
        for part in parts(batch, rows_at_once(batch, vocabulary_of(model)), device):
            with noting_mlps(model) as noted:
                losses[0] += cross_entropy(run_model(model, part), part.targets).item()
            fit.add(*noted.x_and_y)
            asked += int((part.targets != IGNORE).sum())
            with replaced_mlps(model, transcoder):
                losses[1] += cross_entropy(run_model(model, part), part.targets).item()
    if not asked:
        raise EdgewiseError("there is nothing to predict in the held-out rows")
    loss, replaced = (losses / asked).tolist()
    explained, l0, dead = (x.tolist() for x in (fit.explained_variance, fit.l0, fit.dead))
    return TranscoderEvaluation(explained, l0, dead, loss, replaced, asked, fit.massive)
