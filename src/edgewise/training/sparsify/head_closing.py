"""Head pruning during post-training: heads of least importance are closed for good.

Sparsity alone leaves most heads with a few edges, and those may be needed: the number of a head's edges is not its
importance. Closing a head replaces its outputs y_t by its null value r, and so changes the layer's attention output by
delta_t = W_O (y_t - r). To second order that costs

    importance = 1/2 E_t[delta_t^T F delta_t],      F: the layer's Fisher metric (`layerwise.py`)

nats of KL divergence per token. The heads of least importance are closed first, a few at a time, so that the others can take
over what they did; while the constraint is broken none is closed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.gating.edge_gate import attention_modules, gates_of
from edgewise.gating.tap import tap
from edgewise.measure.forward import eval_mode, run_model
from edgewise.models.architecture import out_weights
from edgewise.training.sparsify.batches import TrainingBatches
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.gradients import StepGradients
from edgewise.training.sparsify.twin import TrainedTwin

_TOKENS = 2048
"""Tokens over which importance is measured."""
_TIMES = 40
"""How often heads are closed, were the whole run open for it."""
_CLOSED_BY, _LAST = 0.6, 0.7
"""Fractions of the run by which all heads should be closed, and after which none is closed any more."""


@torch.no_grad()
def head_importance(
    model: nn.Module, metrics: Sequence[Tensor], batch: Batch, micro_batch_size: int
) -> Tensor:  # [layers, heads]
    """The KL divergence that closing each head by itself would add, in nats per token, estimated on a batch.

    `metrics`: Fisher metric of each layer's attention output, [D, D].
    """
    gates = gates_of(model)
    cost = [
        torch.einsum("hdD,DE,heE->hde", w, metric, w)
        for w, metric in zip(map(out_weights, attention_modules(model)), metrics, strict=True)
    ]
    importance = torch.zeros(len(gates), gates[0].heads, device=metrics[0].device)

    def add(layer: int, y: Tensor) -> None:  # [batch, heads, t, d]
        gate = gates[layer]
        delta = y.float()
        if gate.null_value is not None:
            delta = delta - gate.null_value.repeat_interleave(gate.heads // gate.kv_heads, 0)[:, None]
        importance[layer] += 0.5 * torch.einsum("bhtd,hde,bhte->h", delta, cost[layer], delta)

    with eval_mode(model), tap(model, edit={"outputs": add}):
        for micro_batch in batch.micro_batches(micro_batch_size, metrics[0].device):
            run_model(model, micro_batch)
    return importance / batch.ids.numel()


class HeadClosing:
    """Closes a share of the heads over the first part of a run, those of least importance first."""

    def __init__(
        self, config: SparsifyConfig, twin: TrainedTwin, gradients: StepGradients, batches: TrainingBatches
    ):
        if config.close_heads is not None and twin.gate.kappa != 1:
            raise EdgewiseError(
                "`close_heads` needs the gate `relative`: a score gate has no offset of its own"
            )
        self._twin, self._gradients, self._batches = twin, gradients, batches
        n_heads = sum(gate.heads for gate in twin.gates)
        self._goal = round((config.close_heads or 0.0) * n_heads)

    def close(self, step: int, steps: int) -> None:
        """Close the heads that are due after step `step` of `steps`."""
        if not self._goal or step % max(1, steps // _TIMES) or step > _LAST * steps:
            return
        frozen = self._twin.frozen_heads
        closed = torch.tensor(frozen) if frozen else torch.zeros(self._shape, dtype=torch.bool)
        count = self._due(step, steps, int(closed.sum()))
        if count <= closed.sum():
            return
        importance = self._importance().masked_fill(closed, -torch.inf)
        least = importance.flatten().argsort()[:count]
        self._twin.close_heads(
            torch.zeros(closed.numel(), dtype=torch.bool).index_fill(0, least, True).view_as(closed)
        )

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self._twin.gates), self._twin.gates[0].heads

    def _due(self, step: int, steps: int, closed: int) -> int:
        """Heads that should be closed by now: many at first, when they matter little, and few at the end; and never more
        than twice as many at once as on average, should the constraint have been broken for a while."""
        progress = min(1.0, step / (_CLOSED_BY * steps))
        at_most = max(1, round(2 * self._goal / (_CLOSED_BY * _TIMES)))
        return min(round(self._goal * (1 - (1 - progress) ** 2)), closed + at_most)

    def _importance(self) -> Tensor:  # [layers, heads], on the CPU
        metrics, batches = self._gradients.layerwise.fisher_metrics(), self._batches
        with self._twin.autocast():
            importance = head_importance(
                self._twin.inner, metrics, batches.first(_TOKENS), batches.micro_batch_size
            )
        return self._twin.accelerator.reduce(importance, "mean").cpu()  # pyright: ignore  # the same in every process
