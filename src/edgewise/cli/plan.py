"""`edgewise plan`."""

from typing import Annotated, Literal

import tyro

from edgewise.cli.arguments import ModelArgument
from edgewise.training.sparsify.config import SparsifyConfig


def plan(
    model: ModelArgument,
    tokens: Annotated[str | None, tyro.conf.arg(metavar="N")] = None,
    context: int | None = None,
    batch_size: int | None = None,
    grad_accum: int = 1,
    recipe: Literal["small", "pretrained", "paper"] | None = None,
    lora: int | None = None,
    attention_only: bool = False,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> None:
    """Estimate what `edgewise sparsify` and the analyses would cost: FLOPs, memory, time here, GPU-hours, GPUs.

    Reads the model's config only: no weights are loaded, nothing is trained; a folder with config.json is enough. Flags are
    those of `edgewise sparsify` that costs depend on. The last line is the command that starts the run.

    Examples:
      edgewise plan gpt2
      edgewise plan my_model/ --tokens 2B --context 8192
      edgewise plan gpt2 --lora 16 --batch-size 32

    Args:
        model: The dense model: an embedded model (pocket), a folder, or a Hugging Face name such as gpt2.
        tokens: Tokens to train on: 500K, 200M, 1.5B; 200M if not given.
        context: Tokens per sequence; the model's own context (at most 1024) if not given.
        batch_size: Sequences per step, over all processes.
        grad_accum: Micro-batches per step on each device.
        recipe: The recipe of the run; by the model's size if not given.
        lora: Rank of LoRA adapters, instead of training all weights.
        attention_only: Train attention's weights only.
        dtype: Precision of matrix products.
    """
    # torch and transformers take seconds to import: `edgewise --help` need not wait for them
    import edgewise
    from edgewise.cli.tables.plan import print_plan

    config = SparsifyConfig(
        tokens=tokens,
        context=context,
        batch_size=batch_size,
        grad_accum=grad_accum,
        recipe=recipe,
        lora=lora,
        attention_only=attention_only,
        dtype=dtype,
    )
    print_plan(edgewise.plan(model, config))
