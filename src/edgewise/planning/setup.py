"""How a run of post-training is set up: all that its FLOPs and memory depend on, besides the model's shape."""

from dataclasses import dataclass

from edgewise.planning.shape import Shape
from edgewise.training.sparsify.recipe import RECIPES, Recipe
from edgewise.training.sparsify.sampled_softmax import N_LIKELY, N_SAMPLED, is_sampled


@dataclass(frozen=True)
class Setup:
    """One run on one device, or on `n_gpus` with FSDP."""

    context: int
    """T, tokens per sequence."""
    micro_batch: int
    """B, sequences that a device computes at once."""
    lora: int | None = None
    """Rank of adapters; None: weights themselves are trained."""
    attention_only: bool = False
    recipe: Recipe = RECIPES["pretrained"]
    packed: bool = True
    """Documents are packed into sequences, and kept apart by a mask."""
    bf16: bool = False
    n_gpus: int = 1
    """G"""
    sharded: bool = False
    """FSDP."""
    checkpointing: bool = False
    """Activation checkpointing: only the input of each layer is kept for the backward pass."""


def candidate_vocabulary(shape: Shape, setup: Setup) -> int:
    """W, tokens whose logits are computed: the vocabulary, or with sampled softmax those of the batch and a sample."""
    if not setup.recipe.paired_baseline or setup.sharded or not is_sampled(shape.vocabulary):
        return shape.vocabulary
    return min(shape.vocabulary, N_LIKELY + N_SAMPLED + setup.micro_batch * setup.context)
