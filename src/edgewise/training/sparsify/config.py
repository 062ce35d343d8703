"""What can be asked of a run: one dataclass is the API, the command line and its help."""

from dataclasses import dataclass
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
"""Tokens per sequence, where `context` is not given and the model's own context is longer."""


@dataclass(frozen=True)
class SparsifyConfig:
    """A run of post-training. Without `tokens`, `minutes` or `density` it takes 15 minutes."""

    out: Path = Path("runs/sparse")
    """Folder for the twin, summary.json, log.jsonl, the picture of the run and its snapshots."""
    recipe: Literal["small", "pretrained", "paper"] | None = None
    """Hyperparameters: `small` for models of up to 5M parameters, `pretrained` for larger ones (by size if not given), or
    `paper` for the paper's own way (score gate, sampled, fixed loss target, no distillation)."""
    tokens: Annotated[str | None, TOKENS, tyro.conf.arg(metavar="N")] = None
    """Stop after this many tokens: 500K, 200M, 1.5B."""
    minutes: Minutes | None = None
    """Stop after this many minutes; a step is measured first, and the schedule is fitted to them."""
    density: OpenShare | None = None
    """Stop when held-out density is at most this share of edges (0.02 is 2 %) and loss and KL are within the tolerance. From
    this density on the multiplier of the sparsity penalty may fall, so that the loss recovers sooner."""
    tolerance: Nats | None = None
    """Slack of the constraint in nats per token: by how much the twin's loss may exceed the dense model's, and how large the
    KL divergence from the dense model may be; 0.01 if not given."""
    constraint: Literal["loss-and-kl", "loss"] | None = None
    """What is held within the tolerance: loss and KL divergence, or only the loss as in the paper (recipe `paper`). On text
    unlike the model's training text, the loss alone lets a twin make up for closed edges by learning the text."""
    seed: Seed = 0
    """Seed of the order of data and of the gates' noise."""
    gate: Literal["relative", "score"] | None = None
    """The gate, instead of the recipe's."""
    b: Offset | None = None
    """Initial offset b of the gate, instead of the recipe's."""
    sinks: bool = True
    """Whether edges to a text's first token may stay open. Many pretrained models use it as an attention sink: `sinks=False`
    closes all of these edges at once, and such a model learns to attend to the null value instead."""
    lr: LearningRate | None = None
    """Peak learning rate, instead of the recipe's: 1e-3 for models of up to 5M parameters, 5e-5 for larger ones, 2e-4 for
    their adapters or attention alone."""
    context: Context | None = None
    """Tokens per sequence; the model's own context (at most 1024) if not given."""
    batch_size: Size | None = None
    """Sequences per step, over all processes."""
    grad_accum: Size = 1
    """Micro-batches per step on each device, whose gradients are accumulated; more of them take less memory."""
    layerwise_warmup: Annotated[str | None, TOKENS, tyro.conf.arg(metavar="N")] = None
    """Tokens of a layer-wise warm-up at the beginning of the run, in which each layer's attention is distilled by itself,
    which is cheaper. Each batch is used for four steps, and counted four times. For pretrained models."""
    attention_only: bool = False
    """Train only the weights of attention, or adapters of these; MLPs, norms and embeddings stay the dense model's. A step
    is cheaper, and a pretrained model stays stable at a higher `lr`."""
    lora: Rank | None = None
    """Train LoRA adapters of this rank instead of all weights (needs peft). They are merged into the twin at the end, and
    also saved as adapters/: the same twin, for every command, at a fraction of the size."""
    start_from: str | None = None
    """Start from the weights and gates of this sparse twin of the same dense model, instead of from the dense model. With
    `lora`, from the twin's adapters, of the same rank."""
    close_heads: OpenShare | None = None
    """Close this share of all heads for good, a few at a time, while the constraint is kept: those of least importance, the
    KL divergence that closing them would add, by the layers' Fisher metric. For the relative gate."""
    freeze_closed: bool = False
    """Freeze heads whose offset b has fallen below -6, at every validation: their gates stay closed, and attention skips
    them, so that steps get cheaper while the run goes on. For the relative gate."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` computes matrix products in bfloat16 (autocast); weights and gates stay in float32."""
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto"
    """Where to train: cpu, cuda, cuda:1 or mps; auto is a GPU if there is one. `accelerate launch` takes several."""
    valid: tuple[str, ...] | None = None
    """Held-out data; by default a part of `data`, which is not trained on."""
    controls: bool = False
    """Also run the controls afterwards: random and top-k masks of the same density, thresholds, dense training. Takes
    several times as long as the run."""
    plot: bool = True
    """Draw the run when it has ended: run.svg, run.pdf, run.png."""
    resume: bool = False
    """Resume the run in `out` with its settings; `tokens`, `minutes`, `density`, `tolerance` and `lr` may change."""
    save_minutes: NotNegative = 5.0
    """Minutes between snapshots."""
    report_to: Literal["tensorboard", "wandb", "trackio"] | None = None
    """Also log to this tracker, through accelerate."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def loss_tolerance(self) -> float:
        """Slack of the constraint, in nats per token."""
        return DEFAULT_TOLERANCE if self.tolerance is None else self.tolerance

    @property
    def token_limit(self) -> int | None:
        return None if self.tokens is None else token_count(str(self.tokens))

    @property
    def layerwise_tokens(self) -> int:
        return 0 if self.layerwise_warmup is None else token_count(str(self.layerwise_warmup))

    @property
    def minute_limit(self) -> float | None:
        limits = (self.minutes, self.tokens, self.density)
        return DEFAULT_MINUTES if limits == (None, None, None) else self.minutes


MAY_BE_NEW = ("tokens", "minutes", "density", "tolerance", "lr")
"""What a resumed run may change."""
