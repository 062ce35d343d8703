"""Proof by intervention: take a feature or a head away in the model itself, and see whether the logit does what the graph
says.

The graph's prediction for a source is its total effect: what it adds to the logit, directly and through every feature that
it feeds, each with slope 1. It is compared twice with the model, in which the feature's writing is taken out of the MLPs'
outputs, or the head made to attend to nothing, and everything after it computed again by the model's own modules:

    frozen    attention patterns and the norms' denominators stay as they were, as the graph has it. MLPs are the model's:
              the difference is what the transcoder gets wrong, and features that switch on or off.
    actual    everything moves. What is different from `frozen` is due to attention and to norms.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.gating.activations import Edit, Site
from edgewise.gating.tap import tap
from edgewise.models.architecture import parts_of
from edgewise.models.hooks import replace_forward, replace_output
from edgewise.tracing.graph import Graph

_ROWS = 32  # interventions at once


@dataclass(frozen=True)
class Effects:
    """Change of the logits (weighted by probability) when each one is taken away, [n] each."""

    predicted: Tensor
    frozen: Tensor
    actual: Tensor

    @property
    def correlation(self) -> float | None:
        return _correlation(self.predicted, self.actual)

    @property
    def frozen_correlation(self) -> float | None:
        return _correlation(self.predicted, self.frozen)


@torch.no_grad()
def take_away(
    model: PreTrainedModel, graph: Graph, features: Tensor, heads: list[tuple[int, int]]
) -> tuple[Effects, Effects]:
    """Some features (numbers among the graph's) one by one, and some heads one by one."""
    by_feature, by_head = predict(graph)
    layers = len(graph.frozen.layers)
    removed = torch.zeros(len(features), layers, graph.frozen.length, graph.frozen.width)
    for layer in range(layers):
        written = graph.written(features + graph.frozen.length, layer)
        if written is not None:
            removed[:, layer] = written
    found = []
    for frozen in (False, True):
        rows = [_without(model, graph, some, [], frozen) for some in removed.split(_ROWS) if len(some)]
        no_features = torch.cat(rows) if rows else torch.zeros(0)
        rows = [
            _without(model, graph, None, heads[first : first + _ROWS], frozen)
            for first in range(0, len(heads), _ROWS)
        ]
        found.append((no_features, torch.cat(rows) if rows else torch.zeros(0)))
    live, kept = found
    predicted_heads = (
        torch.stack([by_head[layer, head] for layer, head in heads]) if heads else torch.zeros(0)
    )
    return Effects(by_feature[features], kept[0], live[0]), Effects(predicted_heads, kept[1], live[1])


def predict(graph: Graph) -> tuple[Tensor, Tensor]:  # -> [n], [L, heads]
    """Total effect of taking away each feature, and each head, by one walk back in which features pass gradients on."""
    frozen, features = graph.frozen, graph.features
    slope = torch.zeros(len(features))  # d logit / d activation, in all
    per_head = torch.zeros(len(frozen.layers), frozen.layers[0].weights.shape[0])
    at_mlps: dict[int, Tensor] = {}

    def read(layer: int, at_mlp: Tensor) -> Tensor | None:
        at_mlps[layer] = at_mlp[0]
        part = features.of_layer(layer)
        numbers, position = features.number[part], features.position[part]
        writes = graph.transcoder.writes(layer)[numbers]
        for later in range(layer, len(frozen.layers)):
            slope[part] += (at_mlps[later][position] * writes[:, later - layer]).sum(-1)
        encoders, _ = graph.transcoder.reads(layer)
        out = torch.zeros(1, frozen.length, frozen.width)
        out[0].index_add_(0, position, encoders[numbers] * slope[part, None])
        return frozen.layers[layer].norm_2.pull(out)

    def visit(layer: int, at_mlp: Tensor, at_attention: Tensor, at_heads: Tensor) -> None:
        per_head[layer] = -(
            at_heads[0] * (frozen.head_outputs[layer] - frozen.layers[layer].null_value[:, None])
        ).sum((-2, -1))

    end = torch.zeros(1, frozen.length, frozen.width)
    end[0, -1] = graph.readout.weights @ graph.readout.direction
    frozen.pull(frozen.final_norm.pull(end), read, visit)
    return -slope * features.activation, per_head


def _without(
    model: PreTrainedModel, graph: Graph, removed: Tensor | None, heads: list[tuple[int, int]], frozen: bool
) -> Tensor:  # [rows, L, T, D] -> [rows]
    """The change of the logits in a batch, each row of which lacks something else."""
    rows = len(heads) if removed is None else len(removed)

    def drop_head(layer: int, y: Tensor) -> Tensor:
        y = y.clone()
        for row, (its_layer, head) in enumerate(heads):
            if its_layer == layer:
                y[row, head] = graph.frozen.layers[layer].null_value[head]
        return y

    def keep_pattern(layer: int, weights: Tensor) -> Tensor:
        return graph.frozen.layers[layer].weights.expand_as(weights).clone()

    edits: dict[Site, Edit] = {"outputs": drop_head}
    if frozen:
        edits["weights"] = keep_pattern
    parts = parts_of(model)
    with ExitStack() as stack:
        if frozen:
            norms = [(parts.final_norm, graph.frozen.final_norm)]
            for layer, kept in zip(parts.layers, graph.frozen.layers, strict=True):
                norms += [(layer.norm_1, kept.norm_1), (layer.norm_2, kept.norm_2)]
            for norm, kept in norms:
                stack.enter_context(replace_forward(norm, lambda x, kept=kept: kept.push(x) + kept.shift))
        if removed is not None:
            for number, layer in enumerate(parts.layers):
                stack.enter_context(replace_output(layer.mlp, lambda y, i=number: y - removed[:, i].to(y)))
        stack.enter_context(tap(model, edit=edits))
        logits = model(input_ids=graph.frozen.ids[None].expand(rows, -1), use_cache=False).logits[:, -1]
    centred = logits[:, graph.readout.tokens] - logits.mean(-1, keepdim=True)
    return (centred - graph.readout.value) @ graph.readout.weights


def _correlation(x: Tensor, y: Tensor) -> float | None:
    """Pearson's; none for fewer than three points or no spread."""
    if len(x) < 3 or not x.std() > 0 or not y.std() > 0:
        return None
    return torch.corrcoef(torch.stack([x, y]))[0, 1].item()
