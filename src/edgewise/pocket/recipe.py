"""What each embedded model is and how it is trained: everything `train` needs to know about one of them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from edgewise.pocket import addition, evaluate, stream
from edgewise.pocket.tokenizer import pocket_tokenizer
from edgewise.pocket.world import END, VOCABULARY

POCKET_ROWS = 16  # as fast per token as 32, and twice the updates: 0.18 nats ahead after a million tokens
ADDITION_ROWS = 256


@dataclass(frozen=True)
class PocketRecipe:
    """One model and its training."""

    config: GPT2Config
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    batch: Callable[[int, int], tuple[Tensor, Tensor]]
    """(seed, step) -> what the model reads in that step, and what it should say."""
    loss: Callable[[GPT2LMHeadModel, Tensor, Tensor], Tensor]
    """(model, read, say) -> the mean loss."""
    measure: Callable[[nn.Module], dict[str, float]]
    """The final measurement, on held-out text where there is any."""
    glance: Callable[[nn.Module], dict[str, float]]
    """A quick one, to look at while training."""
    tokens: int
    tokens_per_step: int
    rate: float


def _config(
    vocabulary: int, context: int, layers: int, heads: int, width: int, end: int | None
) -> GPT2Config:
    return GPT2Config(
        vocab_size=vocabulary,
        n_positions=context,
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        activation_function="gelu_pytorch_tanh",  # the same function as GPT-2's gelu_new, in one pass
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end,
        eos_token_id=end,
    )


def _pocket_batch(seed: int, step: int) -> tuple[Tensor, Tensor]:  # int64 [rows, 128], [rows, 127]
    ids = stream.training_batch(seed, step, POCKET_ROWS)
    return ids, ids[:, 1:]


def _pocket_loss(model: GPT2LMHeadModel, read: Tensor, say: Tensor) -> Tensor:
    out = model(input_ids=read, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(out.flatten(0, 1), say.flatten())


def _addition_loss(model: GPT2LMHeadModel, read: Tensor, say: Tensor) -> Tensor:
    out = model(input_ids=read, use_cache=False).logits[:, addition.ANSWER]
    return nn.functional.cross_entropy(out.flatten(0, 1), say.flatten())


RECIPES: dict[str, PocketRecipe] = {
    "pocket": PocketRecipe(
        config=_config(len(VOCABULARY), stream.CONTEXT, layers=6, heads=8, width=128, end=stream.ID[END]),
        tokenizer=pocket_tokenizer,
        batch=_pocket_batch,
        loss=_pocket_loss,
        measure=lambda model: evaluate.measure(model, n=2000),
        glance=lambda model: evaluate.measure(model, n=128, seed=1),
        tokens=12_000 * POCKET_ROWS * stream.CONTEXT,
        tokens_per_step=POCKET_ROWS * stream.CONTEXT,
        rate=2e-3,
    ),
    "pocket-addition": PocketRecipe(
        config=_config(len(addition.VOCABULARY), addition.CONTEXT, layers=4, heads=4, width=64, end=None),
        tokenizer=addition.addition_tokenizer,
        batch=lambda seed, step: addition.random_sums(seed, step, ADDITION_ROWS),
        loss=_addition_loss,
        measure=evaluate.measure_addition,
        glance=evaluate.measure_addition,
        tokens=2000 * ADDITION_ROWS * addition.CONTEXT,
        tokens_per_step=ADDITION_ROWS * addition.CONTEXT,
        rate=2e-3,
    ),
}
