"""What the attribution graph predicts of an intervention: total effects, attention patterns and norm denominators frozen.

A source's total effect is what it adds to the log odds directly and through every feature that it feeds, each with slope 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.tracing.graph import Graph


@dataclass(frozen=True)
class GraphGradients:
    """Gradients of the log odds in the linearised pass, through all active features."""

    at_mlps: Tensor
    """At the MLPs' outputs, [L, T, D]."""
    at_heads: Tensor
    """At the heads' outputs, [L, heads, T, d]."""
    at_features: Tensor
    """At the activations of the active features, [n]."""


@torch.no_grad()
def graph_gradients(graph: Graph) -> GraphGradients:
    """One backward pass through all features."""
    linear, features = graph.linear, graph.features
    slope = torch.zeros(len(features))
    at_mlps: dict[int, Tensor] = {}
    at_heads: dict[int, Tensor] = {}

    def through_features(layer: int, at_mlp: Tensor) -> Tensor | None:
        at_mlps[layer] = at_mlp[0]
        of_layer = features.of_layer(layer)
        index, position = features.index[of_layer], features.position[of_layer]
        writes = graph.transcoder.writes(layer)[index]
        for later in graph.transcoder.outputs_of(layer):
            slope[of_layer] += (at_mlps[later][position] * writes[:, later - layer]).sum(-1)
        encoders, _ = graph.transcoder.reads(layer)
        out = torch.zeros(1, linear.length, linear.width)
        out[0].index_add_(0, position, encoders[index] * slope[of_layer, None])
        return linear.layers[layer].norm_2.pull(out)

    def visit(layer: int, at_mlp: Tensor, at_attention: Tensor, of_heads: Tensor) -> None:
        at_heads[layer] = of_heads[0]

    final = torch.zeros(1, linear.length, linear.width)
    final[0, -1] = graph.logits.weights @ graph.logits.direction
    linear.pull(linear.final_norm.pull(final), through_features, visit)
    layers = range(len(linear.layers))
    return GraphGradients(
        torch.stack([at_mlps[layer] for layer in layers]),
        torch.stack([at_heads[layer] for layer in layers]),
        slope,
    )


def predicted_effects(graph: Graph) -> tuple[Tensor, Tensor]:  # -> [n], [L, heads]
    """Total effect of ablating each feature, and each head."""
    gradients, linear = graph_gradients(graph), graph.linear
    outputs = torch.stack([*linear.head_outputs])
    null_values = torch.stack([layer.null_value for layer in linear.layers])[:, :, None]
    by_head = -(gradients.at_heads * (outputs - null_values)).sum((-2, -1))
    return -gradients.at_features * graph.features.activation, by_head
