"""Edge attribution patching (EAP), and with integrated gradients (EAP-IG): an estimate of every edge's effect at once."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgewise.circuits.replay import Replay
from edgewise.circuits.streams import EdgeRuns, clean_stream
from edgewise.circuits.wiring import INPUTS, Wiring
from edgewise.models.architecture import Architecture, Layer
from edgewise.models.hooks import record_input, replace_input, replace_output


def edge_attribution(runs: EdgeRuns, steps: int) -> Tensor:  # -> [n, sources, targets]
    """Attribution of the metric to every edge: (u clean - u corrupt) . d metric / d (input of v), summed over positions.

    The gradient is the mean over `steps` runs whose embeddings go from the corrupt to the clean ones (EAP-IG); with one step
    it is the clean run's (EAP).
    """
    replay, wiring = runs.replay, runs.wiring
    difference = clean_stream(replay).written - runs.corrupt.written
    written = difference.flatten(2)  # [n, sources, t * D]
    shape = (replay.n, len(wiring.sources), len(wiring.targets))
    total = difference.new_zeros(shape)
    corrupt, clean = replay.corrupt.hidden[0], replay.clean.hidden[0]
    for step in range(1, steps + 1):
        embedding = (corrupt + (clean - corrupt) * (step / steps)).detach().requires_grad_()
        scores = difference.new_zeros(shape)
        for targets, sources, gradient in _target_gradients(replay, wiring, embedding):
            scores[:, :sources, targets] = written[:, :sources] @ gradient.flatten(2).mT
        total += scores
    return (total / steps) * wiring.exists.to(total)


def _target_gradients(
    replay: Replay, wiring: Wiring, embedding: Tensor
) -> Iterator[tuple[slice, int, Tensor]]:
    """Gradient of the metric with regard to the inputs of all targets, block by block: the targets, how many sources come
    before them, and the gradient, [n, targets, t, D]."""
    parts, gradients = wiring.parts, _module_gradients(replay, wiring.parts, embedding)
    for numbers, layer, read, of_projections in zip(
        wiring.layers, parts.layers, gradients.read, gradients.projections, strict=True
    ):
        through = _through_norm(layer.norm_1, read, _through_projections(layer, of_projections))
        yield numbers.input_targets, numbers.source, through
    for numbers, layer, read, of_mlp in zip(
        wiring.layers, parts.layers, gradients.read_by_mlp, gradients.mlps, strict=True
    ):
        mlp = numbers.mlp_target
        yield slice(mlp, mlp + 1), numbers.mlp_source, _through_norm(layer.norm_2, read, of_mlp[:, None])
    logits = len(wiring.targets) - 1
    yield slice(logits, logits + 1), len(wiring.sources), gradients.final[:, None]


class _ModuleGradients(NamedTuple):
    """Gradients of the metric with regard to inputs and outputs of modules, and what the norms before them read."""

    projections: list[list[Tensor]]
    """With regard to the outputs of each layer's query, key and value projections, [n, t, width]."""
    mlps: list[Tensor]
    """With regard to the normalised inputs of MLPs, [n, t, D]."""
    final: Tensor
    """With regard to the final residual stream, [n, t, D]."""
    read: list[Tensor]
    """By each layer's first norm, [n, t, D]."""
    read_by_mlp: list[Tensor]


def _module_gradients(replay: Replay, parts: Architecture, embedding: Tensor) -> _ModuleGradients:
    projections: list[list[Tensor]] = [[] for _ in parts.layers]
    mlps, final, read, read_by_mlp = ([] for _ in range(4))

    def keep(x: Tensor, into: list[Tensor]) -> Tensor:
        """Pass on a tensor of its own in the graph, so that its gradient excludes other readers of x."""
        into.append(x.view_as(x))
        return into[-1]

    with torch.enable_grad(), ExitStack() as stack:
        for layer, outputs in zip(parts.layers, projections, strict=True):
            stack.enter_context(record_input(layer.attention_reader, read))
            stack.enter_context(record_input(layer.mlp_reader, read_by_mlp))
            for projection in layer.projections:
                stack.enter_context(replace_output(projection, lambda y, outputs=outputs: keep(y, outputs)))
            stack.enter_context(replace_input(layer.mlp_in, lambda x: keep(x, mlps)))
        stack.enter_context(replace_input(parts.final_norm, lambda x: keep(x, final)))
        metric = replay.scores(0, embedding[None], all_positions=True)[0].sum()
        flat = [y for outputs in projections for y in outputs]
        gradients = iter(torch.autograd.grad(metric, [*flat, *mlps, *final]))
    of_projections = [[next(gradients) for _ in outputs] for outputs in projections]
    of_mlps = [next(gradients).view_as(embedding) for _ in mlps]
    read_by_mlp = [x.view_as(embedding) for x in read_by_mlp]
    return _ModuleGradients(of_projections, of_mlps, next(gradients), read, read_by_mlp)


def _through_projections(layer: Layer, gradients: list[Tensor]) -> Tensor:  # -> [n, inputs, t, D]
    """The gradient with regard to each query, key and value head's own normalised input."""
    per_input = []
    for kind in INPUTS:
        projection, columns = layer.columns[kind]
        weight, _ = layer.weights(kind)
        per_head = gradients[projection][..., columns.flatten()].unflatten(2, columns.shape)
        per_input.append(per_head.transpose(1, 2) @ weight.to(per_head).mT)  # [n, heads, t, D]
    return torch.cat(per_input, 1)


def _through_norm(
    norm: Any, x: Tensor, gradient: Tensor
) -> Tensor:  # [n, t, D], [n, m, t, D] -> [n, m, t, D]
    """The gradient with regard to the norm's input x, for each of m readers of its output."""
    with torch.enable_grad():
        copies = x.detach()[:, None].expand_as(gradient).clone().requires_grad_()
        return torch.autograd.grad(norm(copies), copies, gradient)[0]
