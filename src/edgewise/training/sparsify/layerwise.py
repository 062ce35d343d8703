"""Layer-wise warm-up: the cheap beginning of a run on a large model, in which each layer's attention is trained by itself.

A joint step computes the dense model's forward pass, the twin's, and the backward pass through all of it. Closing most edges
needs none of this. Layer l of the dense model reads h_l and writes a_l; the twin's gated attention reads the *same* h_l,
writes a'_l, and learns to write a_l. Only attention is computed forward and backward, layers are independent of each other,
and there is no unembedding.

The cost of an error delta = a'_l - a_l is estimated in nats, so that all layers and the constraint share one scale. With y
drawn from the dense model's own predictions and g_l = d log p(y) / d a_l, to second order

    KL(dense || twin) = 1/2 delta^T F_l delta,      F_l = E[g_l g_l^T]      (Fisher metric, one [D, D] matrix a layer)

and the step's fit is its sum over layers. This takes errors of different layers and positions to be independent; where they
are not, it is too low. So this is only a warm-up: afterwards all layers are trained jointly, against the real loss.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgewise.data import Batch
from edgewise.gating.edge_gate import attention_modules
from edgewise.gating.tap import tap
from edgewise.measure.fisher import fisher_gradients
from edgewise.measure.forward import forward
from edgewise.training.sparsify.batches import TrainingBatches
from edgewise.training.sparsify.metrics import Scale, step_terms
from edgewise.training.sparsify.twin import TrainedTwin

STEPS_PER_BATCH = 4
"""Steps on the same batch: the dense model's forward pass, most of such a step's work, is shared by all of them."""
_METRIC_TOKENS = 8192
"""Tokens from which the Fisher metric is estimated: each gives one g, and a matrix of a few hundred columns needs many."""


class RecordedCall(NamedTuple):
    """Arguments and output of one call of an attention module."""

    args: tuple
    kwargs: dict[str, Any]
    output: Tensor  # [batch, t, D]


@contextmanager
def recording(model: nn.Module) -> Iterator[list[RecordedCall]]:
    """Record the calls of a model's attention modules, layer by layer, inside a `with` block."""
    calls: list[RecordedCall] = []

    def record(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        calls.append(RecordedCall(args, kwargs, output[0]))

    hooks = [module.register_forward_hook(record, with_kwargs=True) for module in attention_modules(model)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def fisher_metrics(
    dense: nn.Module, batch: Batch, micro_batch_size: int, seed: int
) -> list[Tensor]:  # a layer: [D, D]
    """Fisher metric of each layer's attention output, averaged over positions."""
    device = next(dense.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    sums: list[Tensor] = []
    for micro_batch in batch.micro_batches(micro_batch_size, device):
        gradients = fisher_gradients(dense, attention_modules(dense), micro_batch, generator)
        outer = [(g := gradient.flatten(0, 1).float()).T @ g for gradient in gradients]
        sums = [a + b for a, b in zip(sums, outer, strict=True)] if sums else outer
    return [total / batch.ids.numel() for total in sums]


class LayerwiseGradients:
    """Gradients of each layer's own loss. Keeps the dense model's activations for all steps on the same batch."""

    def __init__(self, dense: nn.Module, twin: TrainedTwin, batches: TrainingBatches, seed: int):
        self._dense, self._twin, self._batches, self._seed = dense, twin, batches, seed
        self.metrics: list[Tensor] | None = None  # a layer: [D, D]
        self.forget()

    def fisher_metrics(self) -> list[Tensor]:  # a layer: [D, D]
        """The Fisher metrics of the dense model, computed once."""
        if self.metrics is None:
            batch, size = self._batches.first(_METRIC_TOKENS), self._batches.micro_batch_size
            self.metrics = fisher_metrics(self._dense, batch, size, self._seed)
        return self.metrics

    def forget(self) -> None:
        """Free the recorded activations."""
        self._batch: Batch | None = None
        self._calls: list[list[RecordedCall]] = []  # of each micro-batch

    def record(self, batch: Batch, micro_batches: list[Batch]) -> None:
        """Record the dense model's attention on a batch, whose micro-batches are on the CPU, once for all steps on it."""
        if self._batch is batch:
            return
        self.forget()
        self._batch = batch
        base: Any = self._dense.base_model
        for micro_batch in micro_batches:
            with torch.no_grad(), self._twin.autocast(), recording(self._dense) as calls:
                forward(base, micro_batch.to(self._twin.accelerator.device))
            self._calls.append(calls)

    def backward(self, index: int, scale: Scale) -> Tensor:  # -> terms of StepMetrics
        """Backward of the recorded micro-batch `index`, layer by layer. The estimated KL takes the place of the twin's loss,
        0 that of the dense model's."""
        metrics = self.fisher_metrics()
        kl = torch.zeros((), device=self._twin.accelerator.device)
        densities, n_layers = [], len(metrics)  # a layer: [heads]
        calls, modules = self._calls[index], attention_modules(self._twin.inner)
        with self._twin.autocast():
            for module, call, metric, penalty in zip(modules, calls, metrics, scale.penalty, strict=True):
                with tap(module) as tapped:
                    error = module(*call.args, **call.kwargs)[0].float() - call.output.float()
                layer_kl = 0.5 * ((error @ metric) * error).sum() / scale.n_targets
                density = tapped.expected_density[0] * scale.pair_share
                (layer_kl + (penalty * density).mean() / n_layers).backward()
                kl += layer_kl.detach()
                densities.append(density.detach())
        return step_terms(kl, torch.zeros_like(kl), kl, torch.stack(densities))
