"""Leave closed heads out of a computation: the inputs of the open heads, and their results put back among zeros."""

from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.kernels.backend import Forward, Gradients, Inputs
from edgewise.kernels.equations import GateSpec


class OpenHeads(NamedTuple):
    """The part of a call that its open heads need."""

    inputs: Inputs
    spec: GateSpec
    whole: Inputs  # of all heads
    heads: Tensor | None  # [open heads]: their indices; None: all are open
    kv_heads: Tensor | None  # index of each key/value head that is used, or of each open head's own one

    def select(self, x: Tensor, dim: int = 1) -> Tensor:
        """The open heads of a tensor that has all."""
        return x if self.heads is None else x.index_select(dim, self.heads)

    def gather(self, result: Forward) -> Forward:
        return Forward(*map(self.select, result))

    def scatter(self, result: Forward) -> Forward:
        """Results of all heads: 0 in closed ones."""
        return result if self.heads is None else Forward(*(self._among_zeros(x) for x in result))

    def scatter_gradients(self, gradients: Gradients) -> Gradients:
        """Gradients of all heads: 0 in closed ones; what heads share is summed."""
        if self.heads is None or self.kv_heads is None:
            return gradients
        dq, dk, dv, db = gradients
        dk, dv = (
            torch.zeros_like(whole).index_add_(1, self.kv_heads, part)
            for whole, part in ((self.whole.k, dk), (self.whole.v, dv))
        )
        return Gradients(self._among_zeros(dq), dk, dv, self._among_zeros(db, 0))

    def _among_zeros(self, x: Tensor, dim: int = 1) -> Tensor:
        assert self.heads is not None
        shape = [*x.shape]
        shape[dim] = self.whole.q.shape[1]
        return x.new_zeros(shape).index_copy_(dim, self.heads, x)


def open_heads(inputs: Inputs, spec: GateSpec) -> OpenHeads:
    """Select what the open heads need; on an accelerator all heads, because their number would have to be waited for."""
    if spec.closed is None or spec.closed.device.type != "cpu":
        return OpenHeads(inputs, spec, inputs, None, None)
    if not spec.closed.any():
        return OpenHeads(inputs, spec._replace(closed=None), inputs, None, None)
    q, k, v, b = inputs
    groups = q.shape[1] // k.shape[1]
    heads = spec.closed.logical_not().nonzero()[:, 0]
    kv_of_head = heads // groups
    kv_heads, readers = kv_of_head.unique_consecutive(return_counts=True)
    if len(heads) and not (readers == readers[0]).all():  # uneven groups: each head with a copy of its keys
        kv_heads = kv_of_head
    mask = spec.mask
    if mask is not None and mask.shape[1] > 1:
        mask = mask.index_select(1, heads)
    part = Inputs(
        q.index_select(1, heads), k.index_select(1, kv_heads), v.index_select(1, kv_heads), b[heads]
    )
    return OpenHeads(part, spec._replace(closed=None, mask=mask), inputs, heads, kv_heads)
