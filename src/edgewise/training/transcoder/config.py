"""What can be asked of a transcoder's training, and of its features: the API, the command line and its help."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from edgewise.core.errors import EdgewiseError
from edgewise.training.sparsify.config import count

DEFAULT_MINUTES = 20.0
LEARNING_RATE = 2e-3
"""For decoders and encoders of small models; wide ones get less, in proportion to 1 / sqrt(width)."""
L0 = 4e-3
_PARAMETERS = 4e8  # of decoders that a transcoder has by itself; whoever wants more asks for it


@dataclass(frozen=True)
class TranscoderConfig:
    """Training of a cross-layer transcoder. Without --tokens or --minutes it takes 20 minutes."""

    out: Path = Path("runs/transcoder")
    """Folder for the transcoder, summary.json, log.jsonl and the snapshots."""
    tokens: Annotated[str | None, tyro.conf.arg(metavar="N")] = None
    """Stop after so many tokens: 500K, 200M, 1.5B."""
    minutes: float | None = None
    """Stop after so many minutes: a step is measured first, and the schedule is fitted to them."""
    features: int | None = None
    """Features of each layer; 4 times the model's width if not given, for deep wide models 2 times or as many."""
    l0: float = L0
    """Price of an active feature, in shares of a layer's variance: more gives fewer active features and a worse fit."""
    lr: float | None = None
    """Highest learning rate; 2e-3 at a width of 128, less for wider models."""
    seed: int = 0
    """Seed of the first weights and of the order of data."""
    context: int | None = None
    """Tokens to a row; the model's own context (at most 1024) if not given."""
    batch_size: int | None = None
    """Rows to a step, over all processes; about half as many tokens as a layer has features if not given."""
    valid: tuple[str, ...] | None = None
    """Held-out data; a part of --data that is never trained on if not given."""
    start_from: Path | None = None
    """Folder of another transcoder of the same sizes to begin from: the dense model's for its sparse twin."""
    dtype: Literal["float32", "float16"] = "float32"
    """Numbers in the file. float16 is half as large, and good enough to use."""
    resume: bool = False
    """Go on with the run in --out. Its settings are kept; --tokens, --minutes and --lr may be new."""
    save_minutes: float = 5.0
    """Minutes between snapshots."""

    def __post_init__(self) -> None:
        wrong = {
            "--tokens": self.tokens is not None and self.token_limit == 0,
            "--minutes": self.minutes is not None and not self.minutes > 0,
            "--features": self.features is not None and self.features < 1,
            "--l0": not self.l0 >= 0,
            "--lr": self.lr is not None and not self.lr > 0,
            "--context": self.context is not None and self.context < 2,
            "--batch-size": self.batch_size is not None and self.batch_size < 1,
            "--save-minutes": not self.save_minutes >= 0,
        }
        for flag in [flag for flag, is_wrong in wrong.items() if is_wrong]:
            value = getattr(self, flag[2:].replace("-", "_"))
            raise EdgewiseError(f"{flag} must be positive, not {value}")

    @property
    def token_limit(self) -> int | None:
        return None if self.tokens is None else count(str(self.tokens))

    @property
    def minute_limit(self) -> float | None:
        return DEFAULT_MINUTES if (self.minutes, self.tokens) == (None, None) else self.minutes

    def features_for(self, layers: int, width: int) -> int:
        """Decoders grow with the square of depth: four times the width where that is bearable, else less."""
        pairs = layers * (layers + 1) // 2
        bearable = [n * width for n in (4, 2) if pairs * n * width**2 <= _PARAMETERS]
        return self.features or next(iter(bearable), width)

    def rate_for(self, width: int) -> float:
        return self.lr or LEARNING_RATE * min(1.0, (128 / width) ** 0.5)


MAY_BE_NEW = ("tokens", "minutes", "lr")
"""What a resumed run may change."""
NOT_SETTINGS = ("out", "resume", "save_minutes", "dtype", *MAY_BE_NEW)


def changed(begun: dict, now: TranscoderConfig) -> list[str]:
    """Settings that a resumed run was given and that differ from those it began with."""
    default = TranscoderConfig()
    return [
        f"--{field.name.replace('_', '-')}"
        for field in fields(now)
        if field.name not in NOT_SETTINGS
        and getattr(now, field.name) not in (begun.get(field.name), getattr(default, field.name))
    ]


@dataclass(frozen=True)
class FeaturesConfig:
    """Which features of a transcoder to look at, and in what text."""

    layer: int
    """The layer whose features are shown, counted from 0."""
    feature: tuple[int, ...]
    """Which of them: one or several."""
    k: int = 8
    """Contexts of each, and tokens that it raises and lowers."""
    around: int = 8
    """Tokens shown on either side of the strongest."""
    model: str | None = None
    """The model, if it is not where it was when the transcoder was trained."""
    data: tuple[str, ...] | None = None
    """Text to look for contexts in. The shipped models bring their own."""
    tokens: Annotated[str, tyro.conf.arg(metavar="N")] = "64K"
    """How much of it to read."""

    def __post_init__(self) -> None:
        for flag, value in (("--k", self.k), ("--around", self.around + 1), ("--layer", self.layer + 1)):
            if value < 1:
                raise EdgewiseError(f"{flag} must not be {getattr(self, flag[2:])}")
        if not self.feature:
            raise EdgewiseError("name a feature: --feature 17")
        if count(self.tokens) == 0:
            raise EdgewiseError(f"--tokens must be positive, not {self.tokens}")
