"""Exact patching of edges: along a kept edge a target reads what the source writes in this run, along any other what it
wrote in the corrupt run. With all edges kept that is the clean run, with none the corrupt one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from edgewise.circuits.streams import EdgeRuns, head_writes
from edgewise.circuits.wiring import INPUTS, LayerWiring
from edgewise.models.architecture import Layer, weight_and_bias
from edgewise.models.hooks import replace_input, replace_output


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
        return replay.scores(0, hidden, patched.write_heads, all_positions=True)[0]


class _PatchedStream:
    """What sources have written so far in a patched run, as a difference from the corrupt run."""

    def __init__(self, runs: EdgeRuns, keep: Tensor) -> None:
        self.runs = runs
        written = runs.corrupt.written
        self.keep = (keep.to(written) * runs.wiring.exists.to(keep.device)).transpose(1, 2)
        self.difference = torch.zeros_like(written)  # [n, sources, t, D]
        self.difference[:, 0] = runs.replay.clean.hidden[0] - written[:, 0]

    def read(self, corrupt: Tensor, targets: slice, sources: int | None = None) -> Tensor:
        """Inputs of `targets`, [n, targets, t, D], which the first `sources` sources come before: `corrupt`, [n, t, D],
        changed along the kept edges."""
        difference = self.difference[:, :sources]
        along = self.keep[:, targets, :sources] @ difference.flatten(2)
        return corrupt[:, None] + along.unflatten(2, difference.shape[2:])

    def write_heads(self, number: int, y: Tensor) -> None:  # [n, heads, t, d]
        layer = self.runs.wiring.parts.layers[number]
        written = head_writes(layer, y - self.runs.replay.corrupt.outputs[number])
        self.difference[:, self.runs.wiring.layers[number].head_sources] = written

    def write_mlp(self, source: int, y: Tensor) -> None:  # [n, t, D]
        self.difference[:, source] = y - self.runs.corrupt.written[:, source]


def _patch_layer(
    stack: ExitStack, patched: _PatchedStream, number: int, numbers: LayerWiring, layer: Layer
) -> None:
    corrupt = patched.runs.corrupt

    def attention_reads() -> Tensor:  # -> [n, inputs, t, D]
        return patched.read(corrupt.read[number], numbers.input_targets, numbers.source)

    def mlp_reads(_: Tensor) -> Tensor:  # -> [n, t, D]
        mlp = slice(numbers.mlp_target, numbers.mlp_target + 1)
        return patched.read(corrupt.read_by_mlp[number], mlp, numbers.mlp_source)[:, 0]

    stack.enter_context(_separate_inputs(layer, attention_reads))
    stack.enter_context(replace_input(layer.norm_2, mlp_reads))
    stack.enter_context(replace_output(layer.mlp, lambda y: patched.write_mlp(numbers.mlp_source, y)))


@contextmanager
def _separate_inputs(layer: Layer, inputs: Callable[[], Tensor]) -> Iterator[None]:
    """Compute each head's query, key and value from an input of its own, [n, inputs, t, D]."""
    outputs: dict[int, Tensor] = {}  # of the projections, by their number

    def project(host: Tensor) -> None:
        normed, first = layer.norm_1(inputs()), 0
        for kind in INPUTS:
            weight, bias = layer.weights(kind)
            heads = normed[:, first : first + len(weight)] @ weight.to(normed)  # [n, heads, t, d]
            first += len(weight)
            heads = heads if bias is None else heads + bias.to(normed)
            number, columns = layer.columns[kind]
            width = weight_and_bias(layer.projections[number])[0].shape[0]
            output = outputs.setdefault(number, host.new_empty(*host.shape[:2], width))
            output[..., columns.flatten()] = heads.transpose(1, 2).flatten(2)

    def replace(number: int, host: Tensor) -> Tensor:
        if not outputs:  # the first projection to be called computes all of them
            project(host)
        return outputs.pop(number)

    with ExitStack() as stack:
        for number, projection in enumerate(layer.projections):
            stack.enter_context(replace_output(projection, lambda y, number=number: replace(number, y)))
        yield
