"""Gradients of which the Fisher metric is the second moment.

With y drawn from a model's own predictions and g = d log p(y) / d a, an error delta of the activation a costs, to second
order,

    KL(model || model with the error) = 1/2 delta^T F delta,      F = E[g g^T]
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.devices import upload
from edgewise.data import IGNORE, Batch
from edgewise.measure.forward import run_model
from edgewise.models.hooks import replace_output


def fisher_gradients(
    model: nn.Module, modules: Sequence[nn.Module], batch: Batch, generator: torch.Generator
) -> list[Tensor]:
    """g at the output of each module (the first, if it has several) and each position: the sum over later predictions."""
    outputs: list[Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_frozen_weights(model))
        for module in modules:
            stack.enter_context(replace_output(module, lambda y: _record(y, outputs)))
        logits = run_model(model, batch).float()
        drawn = _sample(logits.detach().softmax(-1), generator)
        log_p = logits.log_softmax(-1).gather(-1, drawn)[..., 0]
        log_likelihood = log_p.masked_fill(batch.targets == IGNORE, 0.0).sum()
    return list(torch.autograd.grad(log_likelihood, outputs))


def _record(y: Any, outputs: list[Tensor]) -> None:
    outputs.append(y if isinstance(y, Tensor) else y[0])


def _sample(p: Tensor, generator: torch.Generator) -> Tensor:  # [..., vocabulary] -> int64 [..., 1]
    """A token from each distribution, by inversion: random numbers from the CPU are the same for every device."""
    u = upload(torch.rand(*p.shape[:-1], 1, generator=generator), p.device)
    return torch.searchsorted(p.cumsum(-1), u).clamp_max(p.shape[-1] - 1)


@contextmanager
def _frozen_weights(model: nn.Module) -> Iterator[None]:
    """Compute gradients of activations only, from the embedding on: those of weights are the larger part of the work."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    embedding: Any = model.get_input_embeddings()  # pyright: ignore
    hook = embedding.register_forward_hook(lambda module, args, output: output.requires_grad_())
    try:
        yield
    finally:
        hook.remove()
        for parameter, requires_grad in before.items():
            parameter.requires_grad_(requires_grad)
