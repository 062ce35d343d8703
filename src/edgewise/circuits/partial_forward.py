"""Forward passes that compute only what a change can reach: from one layer on, from one token on, logits of the last token.

Each function replaces a part of a model for the length of a `with` block; `Replay.scores` combines them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

from edgewise.gating.edge_gate import gates_of
from edgewise.models.architecture import decoder_layers
from edgewise.models.hooks import Forward, replace_forward, replace_input

KeysValues = tuple[Tensor, Tensor]
"""A layer's keys and values, [batch, kv_heads, tokens, d] each."""


@contextmanager
def start_at_layer(model: nn.Module, layer: int, hidden: Tensor) -> Iterator[None]:
    """Skip the layers before `layer`, and let that one read `hidden`, [batch, t, D]."""
    layers = decoder_layers(model)
    with ExitStack() as stack:
        for skipped in layers[:layer]:
            stack.enter_context(
                replace_forward(skipped, lambda hidden_states, *args, **kwargs: hidden_states)
            )
        stack.enter_context(replace_input(layers[layer], lambda _: hidden))
        yield


@contextmanager
def attend_to_prefix(model: nn.Module, prefix: list[KeysValues], copies: int, layer: int) -> Iterator[None]:
    """Let attention, from `layer` on, also read the recorded keys and values of earlier tokens, in every copy of the
    prompts."""
    gates = gates_of(model)
    for gate, (k, v) in zip(gates, prefix, strict=True):
        if k.shape[2] and gate.layer >= layer:
            gate.prefix = k.repeat(copies, 1, 1, 1), v.repeat(copies, 1, 1, 1)
    try:
        yield
    finally:
        for gate in gates:
            gate.prefix = None


@contextmanager
def fused_gelu(model: nn.Module) -> Iterator[None]:
    """Compute GPT-2's GELU in one kernel instead of eight."""
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, NewGELUActivation):
                stack.enter_context(replace_forward(module, partial(F.gelu, approximate="tanh")))
        yield


def at_last(hidden: Tensor, last: Tensor) -> Tensor:  # [batch, t, D], int64 [batch] -> [batch, D]
    """Activations at the last token of each prompt."""
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def mlp_at_last(mlp: nn.Module, last: Tensor) -> Forward:
    """The forward pass of the last layer's MLP at the last tokens, and 0 elsewhere, where nothing reads it."""
    original = mlp.forward

    def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        output = original(at_last(hidden, last)[:, None], *args, **kwargs)
        if not isinstance(output, Tensor):  # a mixture of experts also returns its router's logits
            return original(hidden, *args, **kwargs)
        batch = torch.arange(len(hidden), device=hidden.device)
        return torch.zeros_like(hidden).index_put((batch, last), output[:, 0])

    return forward


def unembed_last(unembedding: nn.Module, last: Tensor) -> Forward:
    """Logits of the last tokens, [batch, 1, vocabulary]; in single precision at least, if a linear map makes them."""
    original = unembedding.forward
    if not isinstance(unembedding, nn.Linear):
        return lambda hidden: original(at_last(hidden, last)[:, None])

    def forward(hidden: Tensor) -> Tensor:
        x, weight, bias = (_single(y) for y in (at_last(hidden, last), unembedding.weight, unembedding.bias))
        return F.linear(x, weight, bias)[:, None]

    return forward


def _single(x: Any) -> Any:
    """In single precision at least: logits in bfloat16 differ by steps of 1/16."""
    return None if x is None else x.to(torch.promote_types(x.dtype, torch.float32))


def unembed_answers(unembedding: Any, last: Tensor, answers: Tensor) -> Forward:
    """Logits of the last tokens for `answers`, int64 [batch, c], only: [batch, 1, c]. Enough for a difference of logits; a
    softmax would need the whole vocabulary."""
    weight = _single(unembedding.weight[answers])  # [batch, c, D]
    bias = None if unembedding.bias is None else _single(unembedding.bias[answers][:, None])

    def forward(hidden: Tensor) -> Tensor:
        logits = _single(at_last(hidden, last))[:, None] @ weight.mT
        return logits if bias is None else logits + bias

    return forward
