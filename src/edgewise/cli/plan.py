"""`edgewise plan`."""

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import tyro

from edgewise.cli.arguments import Flags, ModelArgument
from edgewise.training.sparsify.config import SparsifyConfig


@dataclass(frozen=True)
class PlannedRun:
    """The fields of a `SparsifyConfig` that costs depend on."""

    tokens: Annotated[str | None, tyro.conf.arg(metavar="N")] = None
    """Tokens to train on: 500K, 200M, 1.5B; 200M if not given."""
    context: int | None = None
    """Tokens per sequence; the model's own context (at most 1024) if not given."""
    batch_size: int | None = None
    """Sequences per step, over all processes."""
    grad_accum: int = 1
    """Micro-batches per step on each device."""
    recipe: Literal["small", "pretrained", "paper"] | None = None
    """The recipe of the run; by the model's size if not given."""
    lora: int | None = None
    """Rank of LoRA adapters, instead of training all weights."""
    attention_only: bool = False
    """Train attention's weights only."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products."""


def plan(model: ModelArgument, run: Flags[PlannedRun]) -> None:
    """Estimate what `edgewise sparsify` and the analyses would cost: FLOPs, memory, time here, GPU-hours, GPUs.

    Reads the model's config only: no weights are loaded, nothing is trained; a folder with config.json is enough. Flags are
    those of `edgewise sparsify` that costs depend on. The last line is the command that starts the run.

    Examples:
      edgewise plan gpt2
      edgewise plan my_model/ --tokens 2B --context 8192
      edgewise plan gpt2 --lora 16 --batch-size 32

    Args:
        model: The dense model: an embedded model (pocket), a folder, or a Hugging Face name such as gpt2.
        run: The run that is planned.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    import edgewise
    from edgewise.cli.tables.plan import print_plan

    print_plan(edgewise.plan(model, SparsifyConfig(**asdict(run))))
