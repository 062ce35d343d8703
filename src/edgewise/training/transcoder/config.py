"""Configuration of transcoder training and of feature descriptions, for the API, the command line and its help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from edgewise.core.errors import EdgewiseError
from edgewise.core.quantities import token_count
from edgewise.core.ranges import (
    TOKENS,
    Context,
    LearningRate,
    Minutes,
    NotNegative,
    Position,
    Seed,
    Size,
    check_fields,
)

Decoders = Literal["cross-layer", "per-layer"]
"""Whether features write to the MLP outputs of their own and all later layers, or of their own alone."""
DEFAULT_MINUTES = 20.0
LEARNING_RATE = 2e-3
"""Of encoders and decoders, up to a width of 128; in proportion to 1 / sqrt(width) beyond."""
L0 = 4e-3
_PARAMETERS = 4e8  # most decoder parameters of a default transcoder


@dataclass(frozen=True)
class TranscoderConfig:
    """Training of a cross-layer transcoder. Without `tokens` or `minutes` it takes 20 minutes."""

    out: Path = Path("runs/transcoder")
    """Folder for the transcoder, summary.json, log.jsonl and the snapshots."""
    tokens: Annotated[str | None, TOKENS, tyro.conf.arg(metavar="N")] = None
    """Stop after this many tokens: 500K, 200M, 1.5B."""
    minutes: Minutes | None = None
    """Stop after this many minutes; a step is measured first, and the schedule is fitted to them."""
    features: Size | None = None
    """Features per layer; by default 4 times the model's width, 2 times or once for deep wide models."""
    decoders: Decoders = "cross-layer"
    """Which MLP outputs a feature writes to: of its own and all later layers, or, `per-layer`, of its own alone. Fewer
    weights, so more features and tokens in the same time, and more features in a trace."""
    l0: NotNegative = L0
    """Sparsity coefficient: cost of an active feature in units of a layer's variance. Higher gives fewer active features and
    less explained variance."""
    lr: LearningRate | None = None
    """Peak learning rate; by default 2e-3 up to a width of 128, lower for wider models."""
    seed: Seed = 0
    """Seed of the initial weights and of the order of data."""
    context: Context | None = None
    """Tokens per sequence; by default the model's own context, at most 1024."""
    batch_size: Size | None = None
    """Sequences per step, over all processes; by default about half as many tokens as a layer has features."""
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto"
    """Where to train: cpu, cuda, cuda:1 or mps; auto is a GPU if there is one. `accelerate launch` takes several."""
    valid: tuple[str, ...] | None = None
    """Held-out data; by default a part of `data`, which is not trained on."""
    start_from: Path | None = None
    """Folder of a transcoder of the same sizes to initialise from: the dense model's for its sparse twin."""
    dtype: Literal["float32", "float16"] = "float32"
    """Precision of the saved file. float16 halves it, at no loss that matters."""
    resume: bool = False
    """Resume the run in `out` with its settings; `tokens`, `minutes` and `lr` may change."""
    save_minutes: NotNegative = 5.0
    """Minutes between snapshots."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def token_limit(self) -> int | None:
        return None if self.tokens is None else token_count(str(self.tokens))

    @property
    def minute_limit(self) -> float | None:
        return DEFAULT_MINUTES if (self.minutes, self.tokens) == (None, None) else self.minutes

    def features_for(self, layers: int, width: int) -> int:
        """Default number of features: decoders grow with the square of depth."""
        matrices = layers * (layers + 1) // 2 if self.decoders == "cross-layer" else layers
        affordable = [n * width for n in (4, 2) if matrices * n * width**2 <= _PARAMETERS]
        return self.features or next(iter(affordable), width)

    def rate_for(self, width: int) -> float:
        return self.lr or LEARNING_RATE * min(1.0, (128 / width) ** 0.5)


MAY_BE_NEW = ("tokens", "minutes", "lr")
"""Settings that a resumed run may change."""


@dataclass(frozen=True)
class FeaturesConfig:
    """Which features of a transcoder to describe, and in what text."""

    layer: Position
    """Layer of the features, counted from 0."""
    feature: tuple[Position, ...]
    """Indices of one or several features."""
    k: Size = 8
    """Contexts per feature, and tokens that it promotes and suppresses."""
    around: Position = 8
    """Tokens shown on either side of the peak."""
    model: str | None = None
    """The model, if it has moved since the transcoder was trained."""
    data: tuple[str, ...] | None = None
    """Text to search for contexts. The embedded models bring their own."""
    tokens: Annotated[str, TOKENS, tyro.conf.arg(metavar="N")] = "64K"
    """How many tokens of it to read."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.feature:
            raise EdgewiseError("name a feature in `feature`, such as 17")
