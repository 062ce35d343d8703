"""Exact patching of edges: along a kept edge a target reads what the source writes in this run, along any other what it
wrote in the corrupt run. With all edges kept that is the clean run, with none the corrupt one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.circuits.streams import EdgeRuns, HeadWrites
from edgewise.circuits.wiring import INPUTS, LayerWiring
from edgewise.models.architecture import Layer, weight_and_bias
from edgewise.models.hooks import replace_forward, replace_input, replace_output


@torch.no_grad()
def scores_with_edges(runs: EdgeRuns, keep: Tensor) -> Tensor:  # [n, sources, targets] -> [n]
    """Metric with only some edges kept (true or 1), or kept in part (between 0 and 1)."""
    replay, parts = runs.replay, runs.wiring.parts
    patched = _PatchedStream(runs, keep)
    with ExitStack() as stack:
        for number, (numbers, layer) in enumerate(zip(runs.wiring.layers, parts.layers, strict=True)):
            _patch_layer(stack, patched, number, numbers, layer)
        logits = slice(len(runs.wiring.targets) - 1, None)
        stack.enter_context(
            replace_input(parts.final_norm, lambda _: patched.read(runs.corrupt.final, logits)[:, 0])
        )
        hidden = replay.clean.hidden[0][None]
        return replay.scores(0, hidden, patched.writes.before_post_norm, all_positions=True)[0]


class _PatchedStream:
    """What sources have written so far in a patched run, as a difference from the corrupt run."""

    def __init__(self, runs: EdgeRuns, keep: Tensor) -> None:
        self.runs = runs
        written = runs.corrupt.written
        self.keep = (keep.to(written) * runs.wiring.exists.to(keep.device)).transpose(1, 2)
        self.difference = torch.zeros_like(written)  # [n, sources, t, D]
        self.difference[:, 0] = runs.replay.clean.hidden[0] - written[:, 0]
        self.writes = HeadWrites(runs.wiring.parts, self._write_heads)

    def read(self, corrupt: Tensor, targets: slice, sources: int | None = None) -> Tensor:
        """Inputs of `targets`, [n, targets, t, D], which the first `sources` sources come before: `corrupt`, [n, t, D],
        changed along the kept edges."""
        difference = self.difference[:, :sources]
        along = self.keep[:, targets, :sources] @ difference.flatten(2)
        return corrupt[:, None] + along.unflatten(2, difference.shape[2:])

    def _write_heads(self, number: int, written: Tensor) -> None:  # [n, heads, t, D]
        heads = self.runs.wiring.layers[number].head_sources
        self.difference[:, heads] = written - self.runs.corrupt.written[:, heads]

    def write_mlp(self, source: int, multiplier: float, y: Any) -> None:  # [n, t, D]
        y = y if isinstance(y, Tensor) else y[0]
        corrupt = self.runs.corrupt.written[:, source]
        self.difference[:, source] = multiplier * y.reshape(corrupt.shape) - corrupt


def _patch_layer(
    stack: ExitStack, patched: _PatchedStream, number: int, numbers: LayerWiring, layer: Layer
) -> None:
    corrupt = patched.runs.corrupt

    def attention_reads() -> Tensor:  # -> [n, inputs, t, D]
        return patched.read(corrupt.read[number], numbers.input_targets, numbers.source)

    def mlp_reads(x: Tensor) -> Tensor:  # -> [n, t, D]
        mlp = slice(numbers.mlp_target, numbers.mlp_target + 1)
        read = patched.read(corrupt.read_by_mlp[number], mlp, numbers.mlp_source)[:, 0]
        return layer.norm_2(read).view_as(x)

    for projection in layer.projections:  # what the host itself would attend to is not used
        stack.enter_context(replace_forward(projection, partial(_nothing, projection)))
    skip_attention_output(stack, layer)
    stack.enter_context(separate_inputs(layer, attention_reads))
    stack.enter_context(patched.writes.after_post_norm(number))
    stack.enter_context(replace_input(layer.mlp_in, mlp_reads))
    write = partial(patched.write_mlp, numbers.mlp_source, layer.multiplier)
    stack.enter_context(replace_output(layer.mlp_writer, write))


def skip_attention_output(stack: ExitStack, layer: Layer) -> None:
    """Do not compute what attention writes, where it is added up from what its heads write: if no norm comes after it."""
    if layer.post_attention is None:
        stack.enter_context(replace_forward(layer.out, partial(_nothing, layer.out)))


def _nothing(linear: nn.Module, x: Tensor) -> Tensor:
    """Zeros of the shape of a linear map's output."""
    return x.new_zeros(()).expand(*x.shape[:-1], len(weight_and_bias(linear)[0]))


@contextmanager
def separate_inputs(
    layer: Layer, inputs: Callable[[], Tensor], targets: Tensor | None = None
) -> Iterator[None]:
    """Compute each head's query, key and value from an input of its own, [n, inputs, t, D].

    targets: Bool, of the layer's queries, keys and values: those that `inputs` has an input for; the others are as the
    host computes them. All of them if not given.
    """
    normed: list[Tensor] = []
    waiting: set[int] = set()  # projections that were not called yet

    def replace(number: int, host: Tensor) -> Tensor:
        if not normed:
            normed.append(layer.norm_1(inputs()))
            waiting.update(range(len(layer.projections)))
        output = torch.empty_like(host) if targets is None else host.clone()
        first = start = 0
        for kind in INPUTS:
            weight, bias = layer.weights(kind)
            (which, columns), rows = layer.columns[kind], layer.slices[kind]
            own = None if targets is None else targets[start : start + len(weight)]
            start += len(weight)
            if own is not None and not own.all():
                weight, columns, bias = weight[own], columns[own], None if bias is None else bias[own]
                rows = None
            if which == number:
                heads = normed[0][:, first : first + len(weight)] @ weight.to(host)  # [n, heads, t, d]
                heads = heads if bias is None else heads + bias.to(host)
                output[..., columns.flatten() if rows is None else rows] = heads.transpose(1, 2).flatten(2)
            first += len(weight)
        waiting.discard(number)
        if not waiting:
            normed.clear()
        return output

    with ExitStack() as stack:
        for number, projection in enumerate(layer.projections):
            stack.enter_context(replace_output(projection, lambda y, number=number: replace(number, y)))
        yield
