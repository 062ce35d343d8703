"""Exact patching of edges by masks that all prompts share: many circuits at once, and the gradient at a mask.

Computes the same as `edge_patching`, and less of it: circuits begin at the layer at which they differ from one that has
been run, targets that no kept edge leads to are left as in the corrupt run, and what sources write is held once, in a
buffer that readers share, in the gradient too.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from edgewise.circuits.edge_patching import separate_inputs, skip_attention_output
from edgewise.circuits.streams import EdgeRuns, HeadWrites
from edgewise.circuits.wiring import LayerWiring
from edgewise.models.architecture import Layer
from edgewise.models.hooks import Forward, replace_forward, replace_input, replace_output


class MaskedRun:
    """A run of copies of the prompts, each with a mask of edges, from one layer on.

    keep: [copies, sources, targets], true or between 0 and 1; with `roles`, int64 [n, t], one such mask for the tokens of
        each role, [copies, roles, sources, targets].
    wanted: Bool [sources, targets]: edges whose gradient is wanted, though their mask may be 0.
    earlier: What sources before the layer write in all of the copies, [n, sources, t * D], from an earlier run.
    """

    def __init__(
        self,
        runs: EdgeRuns,
        keep: Tensor,
        *,
        wanted: Tensor | None = None,
        layer: int = 0,
        earlier: Tensor | None = None,
        roles: Tensor | None = None,
    ) -> None:
        self.runs, self.layer, self.roles = runs, layer, roles
        written, wiring = runs.corrupt.written, runs.wiring
        self.copies, self.n = len(keep), len(written)
        exists = wiring.exists.to(keep.device)
        used = (keep.detach() != 0).flatten(0, -3).any(0) & exists
        self.used = used if wanted is None else used | (wanted & exists)  # [sources, targets]
        self.active = self.used.any(0)  # targets
        self.keep = (keep.to(written.dtype) * exists).transpose(-1, -2)  # [copies, (roles,) targets, sources]
        self.earlier = earlier
        self.first = 0 if earlier is None else earlier.shape[1]
        size = self.copies, self.n, len(wiring.sources) - self.first, written[0, 0].numel()
        self.buffer = _Buffer(written.new_zeros(size))
        self.token = written.new_zeros(())
        self._writes = HeadWrites(wiring.parts, self._write_heads)
        self._host_calls = True  # false while a norm is called for an input of our own
        if earlier is None:
            embedding = runs.replay.clean.hidden[0] - written[:, 0]
            self.buffer.values[:, :, 0] = embedding.flatten(1)

    def written(self, sources: int) -> Tensor:  # -> [n, sources, t * D]
        """What the first sources write in the first copy, less what they write in the corrupt run."""
        own = self.buffer.values[0][:, : sources - self.first]
        return own if self.earlier is None else torch.cat([self.earlier, own], 1)[:, :sources]

    def scores(self) -> Tensor:  # -> [copies, n]
        """Metric of each copy."""
        replay, corrupt, parts = self.runs.replay, self.runs.corrupt, self.runs.wiring.parts
        with ExitStack() as stack:
            for number in range(self.layer, len(parts.layers)):
                self._patch_layer(stack, number, self.runs.wiring.layers[number], parts.layers[number])
            logits = torch.tensor([len(self.runs.wiring.targets) - 1])
            stack.enter_context(
                replace_input(parts.final_norm, lambda _: self._read(corrupt.final, logits)[:, 0])
            )
            hidden = corrupt.read[self.layer].expand(self.copies, *corrupt.read[self.layer].shape)
            return replay.scores(self.layer, hidden, self._writes.before_post_norm, all_positions=True)

    def _patch_layer(self, stack: ExitStack, number: int, numbers: LayerWiring, layer: Layer) -> None:
        """Heads and MLP read along the kept edges; those that nothing is kept for read the corrupt stream."""
        corrupt = self.runs.corrupt
        inputs = self.active[numbers.input_targets].cpu()
        mlp = torch.tensor([numbers.mlp_target])

        def read_by_host(x: Tensor) -> Tensor | None:  # the heads' own inputs have a dimension more
            is_host = self._host_calls and x.ndim == 3
            return corrupt.read[number].repeat(self.copies, 1, 1) if is_host else None

        def read_by_heads() -> Tensor:
            return self._read(corrupt.read[number], inputs.nonzero()[:, 0] + numbers.target, numbers.source)

        def read_by_mlp(x: Tensor) -> Tensor:
            read = self._read(corrupt.read_by_mlp[number], mlp, numbers.mlp_source)[:, 0]
            self._host_calls = False  # a parallel layer may have one norm for both
            normed = layer.norm_2(read)
            self._host_calls = True
            return normed.view_as(x)

        def write_mlp(y: Any) -> None:
            y = y if isinstance(y, Tensor) else y[0]
            before = corrupt.written[:, numbers.mlp_source]
            change = layer.multiplier * y.reshape(self.copies, *before.shape) - before
            self._write(numbers.mlp_source, change[:, :, None])

        stack.enter_context(replace_input(layer.attention_reader, read_by_host))
        stack.enter_context(self._writes.after_post_norm(number))
        self._skip_host_attention(stack, layer)
        if inputs.any():
            stack.enter_context(separate_inputs(layer, read_by_heads, inputs))
        if self.active[numbers.mlp_target]:
            stack.enter_context(replace_input(layer.mlp_in, read_by_mlp))
            stack.enter_context(replace_output(layer.mlp_writer, write_mlp))
        elif type(layer.mlp_in).__name__.endswith("MLP"):  # nothing reads it
            stack.enter_context(replace_forward(layer.mlp_in, lambda x, *_, **__: torch.zeros_like(x)))

    def _skip_host_attention(self, stack: ExitStack, layer: Layer) -> None:
        """Of the host's own attention compute only what is used: queries, keys and values of the corrupt run, alike in all
        copies, and no output, which is added up from what heads write (but where a norm comes after it)."""

        def project(x: Tensor, forward: Forward) -> Tensor:
            y = forward(x[: len(x) // self.copies])
            return y.repeat(self.copies, *[1] * (y.ndim - 1))

        for projection in layer.projections:
            stack.enter_context(replace_forward(projection, partial(project, forward=projection.forward)))
        skip_attention_output(stack, layer)

    def _write_heads(self, number: int, written: Tensor) -> None:  # [copies * n, heads, t, D]
        numbers = self.runs.wiring.layers[number]
        if self.active[numbers.input_targets].any():
            before = self.runs.corrupt.written[:, numbers.head_sources]
            self._write(numbers.source, written.unflatten(0, (self.copies, self.n)) - before)

    def _write(self, source: int, change: Tensor) -> None:  # [copies, n, sources, t, D]
        block = slice(source - self.first, source - self.first + change.shape[2])
        self.token = _Write.apply(self.token, change.flatten(3), self.buffer, block)

    def _read(self, corrupt: Tensor, targets: Tensor, sources: int | None = None) -> Tensor:
        """Inputs of targets, [copies * n, targets, t, D]: `corrupt`, [n, t, D], changed along the kept edges."""
        targets = targets.to(self.keep.device)
        read = self.used[:sources, targets].any(1).nonzero()[:, 0]
        keep = self.keep[..., targets, :][..., read]  # [copies, (roles,) targets, sources]
        keep = keep if self.roles is None else keep[:, self.roles]  # [copies, n, t, targets, sources]
        earlier = int((read < self.first).sum())
        along: Any = _Read.apply(self.token, keep[..., earlier:], self.buffer, read[earlier:] - self.first)
        if self.earlier is not None and earlier:
            along = along + _sum_shared(keep[..., :earlier], self.earlier[:, read[:earlier]])
        return (corrupt[:, None] + along.unflatten(3, corrupt.shape[1:])).flatten(0, 1)


class _Buffer:
    """What sources write, [copies, n, sources, t * D], and the gradient with regard to it, which readers add up."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.gradient: Tensor | None = None


class _Write(torch.autograd.Function):
    """Put sources into the buffer. The token that it returns goes to the next write and to later reads, so that their
    gradients are complete when this one's is taken out."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, change: Tensor, buffer: _Buffer, block: slice) -> Tensor:
        buffer.values[:, :, block] = change
        ctx.buffer, ctx.block = buffer, block
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        total = ctx.buffer.gradient
        of_block = ctx.buffer.values.new_zeros(()) if total is None else total[:, :, ctx.block]
        return gradients[0], of_block.expand_as(ctx.buffer.values[:, :, ctx.block]), None, None


class _Read(torch.autograd.Function):
    """Sum some of the buffer's sources, int64 [sources], along edges: keep, [copies, targets, sources] or [copies, n, t,
    targets, sources] -> [copies, n, targets, t * D]."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, keep: Tensor, buffer: _Buffer, sources: Tensor) -> Tensor:
        ctx.buffer = buffer
        ctx.save_for_backward(keep, sources)
        values = _sources(buffer.values, sources)
        if keep.ndim == 3:
            return keep[:, None] @ values
        return _from_tokens(keep @ _by_token(values, keep.shape[2]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (keep, sources), buffer, (gradient,) = ctx.saved_tensors, ctx.buffer, gradients
        if buffer.gradient is None:
            buffer.gradient = torch.zeros_like(buffer.values)
        values = _sources(buffer.values, sources)
        if keep.ndim == 3:
            buffer.gradient.index_add_(2, sources, keep.mT[:, None] @ gradient)
            return gradient.new_zeros(()), (gradient @ values.mT).sum(1), None, None
        gradient, values = (_by_token(x, keep.shape[2]) for x in (gradient, values))
        buffer.gradient.index_add_(2, sources, _from_tokens(keep.mT @ gradient))
        return gradient.new_zeros(()), gradient @ values.mT, None, None


def _sources(
    values: Tensor, sources: Tensor
) -> Tensor:  # [copies, n, all sources, t * D] -> [copies, n, sources, t * D]
    """Some of the sources; without a copy if they are the first ones."""
    count = len(sources)
    return values[:, :, :count] if not count or sources[-1] == count - 1 else values[:, :, sources]


def _sum_shared(keep: Tensor, values: Tensor) -> Tensor:
    """The same for sources that write the same in all copies, [n, sources, t * D]."""
    if keep.ndim == 5:
        return _from_tokens(keep @ _by_token(values, keep.shape[2]))
    rows = keep.flatten(0, 1) @ values  # [n, copies * targets, t * D]
    return rows.unflatten(1, keep.shape[:2]).transpose(0, 1)


def _by_token(values: Tensor, t: int) -> Tensor:  # [..., sources, t * D] -> [..., t, sources, D]
    return values.unflatten(-1, (t, -1)).transpose(-2, -3)


def _from_tokens(values: Tensor) -> Tensor:  # [..., t, targets, D] -> [..., targets, t * D]
    return values.transpose(-2, -3).flatten(-2)
