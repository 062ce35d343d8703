"""What can be asked of a run: one dataclass is the API, the command line and its help."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from edgewise.core.quantities import token_count
from edgewise.core.ranges import (
    TOKENS,
    Context,
    LearningRate,
    Minutes,
    Nats,
    NotNegative,
    Offset,
    OpenShare,
    Rank,
    Seed,
    Size,
    check_fields,
)

DEFAULT_MINUTES = 15.0
DEFAULT_TOLERANCE = 0.01
LONGEST_CONTEXT = 1024
"""Tokens of a sequence, where --context says nothing and the model could take more."""


@dataclass(frozen=True)
class SparsifyConfig:
    """A run of post-training. Without --tokens, --minutes or --density it takes 15 minutes."""

    out: Path = Path("runs/sparse")
    """Folder for the twin, summary.json, log.jsonl, the picture of the run and its snapshots."""
    recipe: Literal["small", "pretrained", "paper"] | None = None
    """Hyperparameters: `small` for models of up to 5M parameters, `pretrained` for larger ones (by size if not given), or
    `paper` for the paper's own way (score gate, sampled, fixed loss target, no distillation)."""
    tokens: Annotated[str | None, TOKENS, tyro.conf.arg(metavar="N")] = None
    """Stop after so many tokens: 500K, 200M, 1.5B."""
    minutes: Minutes | None = None
    """Stop after so many minutes: a step is measured first, and the schedule is fitted to them."""
    density: OpenShare | None = None
    """Stop when held-out density is at most this share of edges (0.02 is 2 %) and loss and KL are within the tolerance. Once
    so few are left, the multiplier of the sparsity penalty may fall, and the loss recovers sooner."""
    tolerance: Nats | None = None
    """By how much the twin's loss may exceed the dense model's, and how far its predictions may be from the dense model's
    (KL divergence), in nats per token: 0.01 if not given."""
    constraint: Literal["loss-and-kl", "loss"] | None = None
    """What has to stay within the tolerance: loss and KL divergence, or only the loss as in the paper (recipe `paper`). On
    text that is foreign to the model, the loss alone lets a twin pay for closed attention by learning the text."""
    seed: Seed = 0
    """Seed of the order of data and of the gates' noise."""
    gate: Literal["relative", "score"] | None = None
    """Another gate than the recipe's."""
    b: Offset | None = None
    """Another start for the gate's offset than the recipe's."""
    sinks: bool = True
    """Whether edges to a text's first token may stay open. Many pretrained models use it as an attention sink: --no-sinks
    closes all of these edges at once, and such a model learns to attend to the null value instead."""
    lr: LearningRate | None = None
    """Another highest learning rate than the usual one: 1e-3 for models of up to 5M parameters, 5e-5 for larger ones, 2e-4
    for their adapters or attention alone."""
    context: Context | None = None
    """Tokens of a sequence; the model's own context (at most 1024) if not given."""
    batch_size: Size | None = None
    """Sequences of a step, over all processes."""
    grad_accum: Size = 1
    """Micro-batches whose gradients are accumulated in a step, to save memory."""
    layerwise_warmup: Annotated[str | None, TOKENS, tyro.conf.arg(metavar="N")] = None
    """Begin with a layer-wise warm-up over so many of the run's tokens: each layer's attention learns to write what the
    dense layer writes, which is cheaper. Each batch takes four steps, which all count. For pretrained models."""
    attention_only: bool = False
    """Train only attention's own weights, or adapters of these: MLPs, norms and embeddings stay the dense model's. A step is
    cheaper, and a pretrained model bears a higher --lr."""
    lora: Rank | None = None
    """Train LoRA adapters of this rank instead of all weights (needs peft). At the end they are merged into the twin, and
    saved as adapters/ too: the same twin, for every command, in a small part of the space."""
    freeze_closed: bool = False
    """Freeze heads whose offset b has fallen below -6, at every validation: their gates stay closed, and attention skips
    them, so that steps get cheaper while the run goes on. For the relative gate."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` computes matrix products in bfloat16 (autocast); weights and gates stay in float32."""
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto"
    """Where to train: cpu, cuda, cuda:1 or mps; auto is a GPU if there is one. `accelerate launch` takes several."""
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
    save_minutes: NotNegative = 5.0
    """Minutes between snapshots."""
    report_to: Literal["tensorboard", "wandb", "trackio"] | None = None
    """Also log to this tracker, through accelerate."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def loss_tolerance(self) -> float:
        """Nats per token that the twin may lose."""
        return DEFAULT_TOLERANCE if self.tolerance is None else self.tolerance

    @property
    def token_limit(self) -> int | None:
        return None if self.tokens is None else token_count(str(self.tokens))

    @property
    def layerwise_tokens(self) -> int:
        return 0 if self.layerwise_warmup is None else token_count(str(self.layerwise_warmup))

    @property
    def minute_limit(self) -> float | None:
        asked = (self.minutes, self.tokens, self.density)
        return DEFAULT_MINUTES if asked == (None, None, None) else self.minutes


MAY_BE_NEW = ("tokens", "minutes", "density", "tolerance", "lr")
"""What a resumed run may change."""
NOT_SETTINGS = ("out", "device", "resume", "save_minutes", "controls", "report_to", "plot", *MAY_BE_NEW)


def changed(begun: dict, now: SparsifyConfig) -> list[str]:
    """Settings that a resumed run was given and that differ from those it began with."""
    default = SparsifyConfig()
    return [
        f"--{field.name.replace('_', '-')}"
        for field in fields(now)
        if field.name not in NOT_SETTINGS
        and getattr(now, field.name) not in (begun.get(field.name), getattr(default, field.name))
    ]
