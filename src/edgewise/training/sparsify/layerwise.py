"""Each layer's attention by itself: the cheap beginning of a run on a large model.

A step of post-training pays for the whole model three times over: the dense model's pass, the twin's, and the way back
through all of it. To close most edges none of this is needed. Layer l of the dense model reads h_l and writes a_l; the
twin's gated attention reads the *same* h_l, writes a'_l, and learns to write a_l. Only attention is computed forward and
back, no layer waits for another, and there is no unembedding.

What an error delta = a'_l - a_l costs is measured in nats, so that all layers and the constraint share one scale. If y is
drawn from the dense model's own predictions and g_l = d log p(y) / d a_l, then to second order

    KL(dense || twin) = 1/2 delta^T F_l delta,      F_l = E[g_l g_l^T]      (the Fisher metric, one [D, D] matrix a layer)

and the step's fit is the sum of that over layers. It takes errors of different layers and positions for independent; where
they are not, it is too low. So this is a beginning: afterwards all layers are trained together, against the real loss.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgewise.data import IGNORE, Batch
from edgewise.gating.edge_gate import attention_modules
from edgewise.gating.tap import tap
from edgewise.measure.evaluation import parts, run_model

UPDATES = 4
"""Steps on the same rows: the dense model's pass, most of such a step's work, is done once for all of them."""
METRIC_TOKENS = 8192
"""Tokens from which the metric is estimated: each gives one g, and a matrix of a few hundred columns needs many."""


class Passed(NamedTuple):
    """What one attention module was called with, and what it gave."""

    arguments: tuple
    named: dict[str, Any]
    output: Tensor  # [rows, context, D]


@contextmanager
def recording(model: nn.Module) -> Iterator[list[Passed]]:
    """What passes through each attention module of a model, layer by layer."""
    seen: list[Passed] = []

    def note(module: nn.Module, arguments: tuple, named: dict[str, Any], output: Any) -> None:
        seen.append(Passed(arguments, named, output[0]))

    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in attention_modules(model)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def fisher_metrics(dense: nn.Module, batch: Batch, rows: int, seed: int) -> list[Tensor]:  # a layer: [D, D]
    """F of each layer's attention output, on average over positions."""
    device = next(dense.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    sums: list[Tensor] = []
    for part in parts(batch, rows, device):
        with torch.enable_grad(), _only_gradients_of_activations(dense), recording(dense) as seen:
            logits = run_model(dense, part)[part.targets != IGNORE].float()
            drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)
            likely = logits.log_softmax(-1).gather(-1, drawn).sum()
        gradients = torch.autograd.grad(likely, [passed.output for passed in seen])
        outer = [(g := gradient.flatten(0, 1).float()).T @ g for gradient in gradients]
        sums = [a + b for a, b in zip(sums, outer, strict=True)] if sums else outer
    return [each / batch.ids.numel() for each in sums]


@contextmanager
def _only_gradients_of_activations(model: nn.Module) -> Iterator[None]:
    """All weights but the embedding's stay out of the graph: their gradients are the larger part of the work."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    embedding: Any = model.get_input_embeddings()  # pyright: ignore
    hook = embedding.register_forward_hook(lambda module, arguments, output: output.requires_grad_())
    try:
        yield
    finally:
        hook.remove()
        for parameter, wanted in before.items():
            parameter.requires_grad_(wanted)


def backward_layerwise(
    twin: nn.Module, seen: list[Passed], metrics: list[Tensor], asked: int, pressure: float, share: float
) -> tuple[float, float]:  # -> nats, density
    """Compute the gradients of each layer's own loss: its cost in nats, per token asked for, and its share of the edges.

    `share` is the part of the step's (query, key) pairs that these rows have.
    """
    cost, density, layers = 0.0, 0.0, len(seen)
    for module, passed, metric in zip(attention_modules(twin), seen, metrics, strict=True):
        with tap(module) as counted:
            error = module(*passed.arguments, **passed.named)[0].float() - passed.output.float()
        nats = 0.5 * ((error @ metric) * error).sum() / asked
        open_share = counted.expected_density.mean() * share / layers
        (nats + pressure * open_share).backward()
        cost, density = cost + nats.item(), density + open_share.item()
    return cost, density
