"""Forward passes over batches: logits, eval mode, and how many sequences fit into one pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from edgewise.data.batch import Batch
from edgewise.gating.attention_interface import prepared_mask, takes_prepared_mask
from edgewise.gating.edge_gate import gates_of
from edgewise.measure.memory import activation_elements
from edgewise.models.architecture import mlp_width, vocabulary_size

TOKENS_PER_PASS = 4096
LOGITS_PER_PASS = 1 << 26
"""256 MB in single precision, and as much for their softmax."""


def run_model(model: nn.Module, batch: Batch) -> Tensor:  # -> [n, context, vocabulary]
    """The logits of a batch."""
    return forward(model, batch).logits


def forward(model: nn.Module, batch: Batch) -> Any:
    """A forward pass over a batch. Positions tell transformers where documents begin: attention stays inside them."""
    arguments = {} if batch.positions is None else {"position_ids": batch.positions}
    if takes_prepared_mask(model):
        arguments["attention_mask"] = prepared_mask(batch.ids, batch.positions)
    return model(input_ids=batch.ids, use_cache=False, **arguments)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Hold a model in eval mode inside a `with` block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def sequences_per_pass(batch: Batch, vocabulary: int = 1, logits: int = LOGITS_PER_PASS) -> int:
    """Sequences to a forward pass. Where it computes logits, these take most of the memory: give the vocabulary's size.

    Args:
        batch: What to run.
        vocabulary: Logits per token; 1 if none are computed.
        logits: The most logits at a time.
    """
    return max(1, min(TOKENS_PER_PASS, logits // vocabulary) // batch.ids.shape[1])


def evaluation_bytes(model: Any, batch: Batch) -> int:
    """Bytes that evaluating a model on a batch takes at most: the logits of one pass and their softmax."""
    vocabulary, t = vocabulary_size(model), batch.ids.shape[1]
    width, heads = model.config.get_text_config().hidden_size, gates_of(model)[0].heads
    per_sequence = 2 * t * vocabulary + activation_elements(t, width, mlp_width(model), heads)
    return 4 * sequences_per_pass(batch, vocabulary) * per_sequence
