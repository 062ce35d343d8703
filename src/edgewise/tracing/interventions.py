"""Validation by intervention: ablate a feature or a head in the model itself, and compare the change of the logits with the
graph's prediction.

The prediction for a source is its total effect: what it adds to the logits, directly and through every feature that it
feeds, each with slope 1. It is compared twice with the model, in which the feature's write is subtracted from the MLPs'
outputs, or the head's output replaced by its null value, and everything after it computed by the model's own modules:

    frozen    attention patterns and norm denominators are frozen, as in the graph. MLPs are the model's: the difference is
              the transcoder's error, and features that switch on or off.
    actual    everything changes. The difference from `frozen` is due to attention and to norms.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.gating.activations import Edit, Site
from edgewise.gating.tap import tap
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_forward, replace_output
from edgewise.tracing.graph import Graph
from edgewise.tracing.influence import PrunedGraph
from edgewise.tracing.schema import Intervention, Node

MAX_ABLATIONS = 30
"""Features, and as many heads, that are ablated."""
_BATCH = 32  # ablations at once

Head = tuple[int, int]
"""Layer, head."""


@dataclass(frozen=True)
class Effects:
    """Change of the logits (weighted by probability) for each of n ablations, [n] each."""

    predicted: Tensor
    frozen: Tensor
    actual: Tensor

    @property
    def correlation(self) -> float | None:
        return _correlation(self.predicted, self.actual)

    @property
    def frozen_correlation(self) -> float | None:
        return _correlation(self.predicted, self.frozen)


def validate(
    model: PreTrainedModel, graph: Graph, pruned: PrunedGraph, heads: list[Head], nodes: list[Node]
) -> tuple[list[Intervention], dict[str, float | None]]:
    """Ablate the kept features with most influence, and some heads, one by one; and correlate with the predictions."""
    length = graph.linear.length
    kept = pruned.targets[pruned.targets < len(graph.features)]
    order = pruned.influence[kept + length].argsort(descending=True)
    features = kept[order][:MAX_ABLATIONS]
    heads = heads[:MAX_ABLATIONS]
    by_feature, by_head = ablate(model, graph, features, heads)
    node_ids = {int(s): node.id for s, node in zip(pruned.sources, nodes, strict=False)}
    names = [node_ids[int(f) + length] for f in features], [f"L{layer}H{head}" for layer, head in heads]
    interventions = []
    for effects, ablated in zip((by_feature, by_head), names, strict=True):
        values = (effects.predicted.tolist(), effects.frozen.tolist(), effects.actual.tolist())
        interventions += [Intervention(*row) for row in zip(ablated, *values, strict=True)]
    return interventions, {
        "feature_correlation": by_feature.correlation,
        "feature_correlation_frozen": by_feature.frozen_correlation,
        "head_correlation": by_head.correlation,
        "head_correlation_frozen": by_head.frozen_correlation,
    }


@torch.no_grad()
def ablate(
    model: PreTrainedModel, graph: Graph, features: Tensor, heads: list[Head]
) -> tuple[Effects, Effects]:  # int64 [n]
    """Effects of ablating some features (numbered as in the graph) one by one, and some heads one by one."""
    predicted_features, predicted_heads = predicted_effects(graph)
    n_layers = len(graph.linear.layers)
    writes = torch.zeros(len(features), n_layers, graph.linear.length, graph.linear.width)
    for layer in range(n_layers):
        write = graph.source_write(features + graph.linear.length, layer)
        if write is not None:
            writes[:, layer] = write

    def measure(frozen: bool) -> tuple[Tensor, Tensor]:
        by_feature = [_ablated_change(model, graph, w, [], frozen) for w in writes.split(_BATCH) if len(w)]
        by_head = [
            _ablated_change(model, graph, None, heads[first : first + _BATCH], frozen)
            for first in range(0, len(heads), _BATCH)
        ]
        return torch.cat([torch.zeros(0), *by_feature]), torch.cat([torch.zeros(0), *by_head])

    (actual_features, actual_heads), (frozen_features, frozen_heads) = measure(False), measure(True)
    chosen_heads = [predicted_heads[layer, head] for layer, head in heads]
    return (
        Effects(predicted_features[features], frozen_features, actual_features),
        Effects(torch.stack(chosen_heads) if heads else torch.zeros(0), frozen_heads, actual_heads),
    )


def predicted_effects(graph: Graph) -> tuple[Tensor, Tensor]:  # -> [n], [L, heads]
    """Total effect of ablating each feature, and each head, by one backward pass through all features."""
    linear, features = graph.linear, graph.features
    slope = torch.zeros(len(features))  # d logits / d activation, in all
    by_head = torch.zeros(len(linear.layers), linear.n_heads)
    mlp_gradients: dict[int, Tensor] = {}

    def through_features(layer: int, at_mlp: Tensor) -> Tensor | None:
        mlp_gradients[layer] = at_mlp[0]
        of_layer = features.of_layer(layer)
        index, position = features.index[of_layer], features.position[of_layer]
        writes = graph.transcoder.writes(layer)[index]
        for later in range(layer, len(linear.layers)):
            slope[of_layer] += (mlp_gradients[later][position] * writes[:, later - layer]).sum(-1)
        encoders, _ = graph.transcoder.reads(layer)
        out = torch.zeros(1, linear.length, linear.width)
        out[0].index_add_(0, position, encoders[index] * slope[of_layer, None])
        return linear.layers[layer].norm_2.pull(out)

    def visit(layer: int, at_mlp: Tensor, at_attention: Tensor, at_heads: Tensor) -> None:
        by_head[layer] = -(
            at_heads[0] * (linear.head_outputs[layer] - linear.layers[layer].null_value[:, None])
        ).sum((-2, -1))

    final = torch.zeros(1, linear.length, linear.width)
    final[0, -1] = graph.logits.weights @ graph.logits.direction
    linear.pull(linear.final_norm.pull(final), through_features, visit)
    return -slope * features.activation, by_head


def _ablated_change(
    model: PreTrainedModel, graph: Graph, writes: Tensor | None, heads: list[Head], frozen: bool
) -> Tensor:  # [batch, L, T, D] -> [batch]
    """Change of the logits in a batch, each sequence of which lacks another feature's writes or another head."""
    batch = len(heads) if writes is None else len(writes)

    def drop_head(layer: int, y: Tensor) -> Tensor:
        y = y.clone()
        for row, (head_layer, head) in enumerate(heads):
            if head_layer == layer:
                y[row, head] = graph.linear.layers[layer].null_value[head]
        return y

    def keep_pattern(layer: int, weights: Tensor) -> Tensor:
        return graph.linear.layers[layer].weights.expand_as(weights).clone()

    edits: dict[Site, Edit] = {"outputs": drop_head}
    if frozen:
        edits["weights"] = keep_pattern
    with ExitStack() as stack:
        if frozen:
            stack.enter_context(_frozen_norms(model, graph))
        if writes is not None:
            for number, layer in enumerate(architecture_of(model).layers):
                stack.enter_context(replace_output(layer.mlp, lambda y, i=number: y - writes[:, i].to(y)))
        stack.enter_context(tap(model, edit=edits))
        logits = model(input_ids=graph.linear.ids[None].expand(batch, -1), use_cache=False).logits[:, -1]
    centred = logits[:, graph.logits.tokens] - logits.mean(-1, keepdim=True)
    return (centred - graph.logits.value) @ graph.logits.weights


@contextmanager
def _frozen_norms(model: PreTrainedModel, graph: Graph) -> Iterator[None]:
    """Let all norms divide by their recorded denominators."""
    modules = architecture_of(model)
    norms = [(modules.final_norm, graph.linear.final_norm)]
    for layer, linear in zip(modules.layers, graph.linear.layers, strict=True):
        norms += [(layer.norm_1, linear.norm_1), (layer.norm_2, linear.norm_2)]
    with ExitStack() as stack:
        for norm, linear in norms:
            stack.enter_context(replace_forward(norm, lambda x, linear=linear: linear.push(x) + linear.shift))
        yield


def _correlation(x: Tensor, y: Tensor) -> float | None:
    """Pearson's; None for fewer than three points or no spread."""
    if len(x) < 3 or not x.std() > 0 or not y.std() > 0:
        return None
    return torch.corrcoef(torch.stack([x, y]))[0, 1].item()
