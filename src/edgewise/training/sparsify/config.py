"""What can be asked of a run: one dataclass is the API, the command line and its help."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from edgewise.core.errors import EdgewiseError
from edgewise.training.sparsify.recipe import RECIPES

DEFAULT_MINUTES = 15.0
DEFAULT_TOLERANCE = 0.01
LONGEST_CONTEXT = 1024
"""Tokens to a row, where --context says nothing and the model could take more."""
_SUFFIX = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def count(text: str) -> int:
    """200M, 1.5B, 40_000: a number of tokens."""
    found = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)([KMB]?)", text.strip().upper())
    if not found:
        raise EdgewiseError(f"{text!r} is no number of tokens; write 500K, 200M or 1.5B")
    return round(float(found[1].replace("_", "")) * _SUFFIX[found[2]])


@dataclass(frozen=True)
class SparsifyConfig:
    """A run of post-training. Without --tokens, --minutes or --density it takes 15 minutes."""

    out: Path = Path("runs/sparse")
    """Folder for the twin, summary.json, log.jsonl, the picture of the run and its snapshots."""
    recipe: Literal["small", "pretrained", "paper"] | None = None
    """Hyperparameters: `small` for models of up to 5M parameters, `pretrained` for larger ones (by size if not given), or
    `paper` for the paper's own way (score gate, sampled, fixed loss target, no distillation)."""
    tokens: Annotated[str | None, tyro.conf.arg(metavar="N")] = None
    """Stop after so many tokens: 500K, 200M, 1.5B."""
    minutes: float | None = None
    """Stop after so many minutes: a step is measured first, and the schedule is fitted to them."""
    density: float | None = None
    """Stop when held-out density is at most this share of edges (0.02 is 2 %) and the loss is kept. Once so few are left,
    the pressure is let go, and the loss comes back sooner."""
    tolerance: float | None = None
    """By how much the twin's loss may exceed the dense model's, in nats per token: 0.01 if not given."""
    seed: int = 0
    """Seed of the order of data and of the gates' noise."""
    gate: Literal["relative", "score"] | None = None
    """Another gate than the recipe's."""
    b: float | None = None
    """Another start for the gate's offset than the recipe's."""
    sinks: bool = True
    """Whether edges to a text's first token may stay. Many pretrained models rest there when there is nothing to look at:
    --no-sinks closes all of these edges at once, and such a model learns to attend to nothing instead."""
    lr: float | None = None
    """Another highest learning rate than the usual one: 1e-3 for models of up to 5M parameters, 5e-5 for larger ones, 2e-4
    for their adapters or attention alone."""
    context: int | None = None
    """Tokens to a row; the model's own context (at most 1024) if not given."""
    batch_size: int | None = None
    """Rows to a step, over all processes."""
    grad_accum: int = 1
    """Compute a step's gradient in so many parts, to save memory."""
    layerwise_warmup: Annotated[str | None, tyro.conf.arg(metavar="N")] = None
    """Begin with each layer's attention by itself, for so many of the run's tokens: cheaper. Rows are gone over four times
    and count each time. For pretrained models."""
    attention_only: bool = False
    """Train only attention's own weights, or adapters of these: MLPs, norms and embeddings stay the dense model's. A step is
    cheaper, and a pretrained model bears a higher --lr."""
    lora: int | None = None
    """Train LoRA adapters of this rank instead of all weights (needs peft). At the end they are merged into the twin, and
    saved as adapters/ too: the same twin, for every command, in a small part of the space."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` computes matrix products in bfloat16 (autocast); weights and gates stay in float32."""
    valid: tuple[str, ...] | None = None
    """Held-out data; a part of --data that is never trained on if not given."""
    controls: bool = False
    """Also run the controls afterwards: random and top-k masks of the same density, thresholds, dense training. Takes
    several times as long as the run."""
    plot: bool = True
    """Draw the run when it has ended: run.svg, run.pdf, run.png."""
    resume: bool = False
    """Go on with the run in --out. Its settings are kept; --tokens, --minutes, --density, --tolerance and --lr may
    be new."""
    save_minutes: float = 5.0
    """Minutes between snapshots."""
    report_to: Literal["tensorboard", "wandb", "trackio"] | None = None
    """Also log to this tracker, through accelerate."""

    def __post_init__(self) -> None:
        wrong = {
            "--tokens": self.tokens is not None and self.token_limit == 0,
            "--minutes": self.minutes is not None and not self.minutes > 0,
            "--density": self.density is not None and not 0 < self.density < 1,
            "--tolerance": self.tolerance is not None and not self.tolerance > 0,
            "--lr": self.lr is not None and not self.lr > 0,
            "--context": self.context is not None and self.context < 2,
            "--batch-size": self.batch_size is not None and self.batch_size < 1,
            "--grad-accum": self.grad_accum < 1,
            "--layerwise-warmup": self.layerwise_warmup is not None and self.layerwise_tokens == 0,
            "--lora": self.lora is not None and self.lora < 1,
            "--save-minutes": not self.save_minutes >= 0,
        }
        for flag in [flag for flag, is_wrong in wrong.items() if is_wrong]:
            value = getattr(self, flag[2:].replace("-", "_"))
            range_ = "between 0 and 1" if flag == "--density" else "positive"
            raise EdgewiseError(f"{flag} must be {range_}, not {value}")
        if self.recipe is not None and self.recipe not in RECIPES:
            raise EdgewiseError(f"unknown recipe {self.recipe!r}; the recipes are: {', '.join(RECIPES)}")

    @property
    def loss_tolerance(self) -> float:
        """Nats per token that the twin may lose."""
        return DEFAULT_TOLERANCE if self.tolerance is None else self.tolerance

    @property
    def token_limit(self) -> int | None:
        return None if self.tokens is None else count(str(self.tokens))

    @property
    def layerwise_tokens(self) -> int:
        return 0 if self.layerwise_warmup is None else count(str(self.layerwise_warmup))

    @property
    def minute_limit(self) -> float | None:
        asked = (self.minutes, self.tokens, self.density)
        return DEFAULT_MINUTES if asked == (None, None, None) else self.minutes


MAY_BE_NEW = ("tokens", "minutes", "density", "tolerance", "lr")
"""What a resumed run may change."""
NOT_SETTINGS = ("out", "resume", "save_minutes", "controls", "report_to", "plot", *MAY_BE_NEW)


def changed(begun: dict, now: SparsifyConfig) -> list[str]:
    """Settings that a resumed run was given and that differ from those it began with."""
    default = SparsifyConfig()
    return [
        f"--{field.name.replace('_', '-')}"
        for field in fields(now)
        if field.name not in NOT_SETTINGS
        and getattr(now, field.name) not in (begun.get(field.name), getattr(default, field.name))
    ]
