"""Validation by intervention: predictions are total effects, ablations are done in the model itself."""

from contextlib import ExitStack

import pytest
import torch
from torch import Tensor
from traced import LENGTH, every_model, model_and_graph

from edgewise.gating.tap import tap
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_output
from edgewise.tracing.interventions import ablate, predicted_effects


@every_model
@torch.no_grad()
def test_predictions_are_total_effects(kind: str, gated: bool):
    """Against the adjacency matrix: the direct effect, plus those of all features that it feeds."""
    _, graph = model_and_graph(kind, gated)
    features, count = graph.features, len(graph.features)
    weights = graph.logits.probability / graph.logits.probability.sum()
    edges = graph.adjacency[:, graph.feature_sources]
    slope = weights @ (edges[count:] / features.activation)
    direct = slope.clone()
    for layer in reversed(range(len(graph.linear.layers))):
        part = features.of_layer(layer)
        slope += slope[part] @ (edges[:count][part] / features.activation)
    by_feature, _ = predicted_effects(graph)
    torch.testing.assert_close(by_feature, -slope * features.activation, rtol=1e-3, atol=1e-5)
    assert (slope - direct).abs().max() > 1e-3


@torch.no_grad()
def test_ablations_are_done_in_the_model():
    model, graph = model_and_graph("gpt2", True)
    which, heads = torch.tensor([3, 20]), [(0, 1), (2, 3)]
    by_feature, by_head = ablate(model, graph, which, heads)
    weights = graph.logits.probability / graph.logits.probability.sum()

    def change(logits: Tensor) -> float:
        centred = logits[graph.logits.tokens] - logits.mean()
        return ((centred - graph.logits.value) @ weights).item()

    for i, feature in enumerate(which.tolist()):
        with ExitStack() as stack:
            for number, layer in enumerate(architecture_of(model).layers):
                gone = graph.source_write(torch.tensor([feature + LENGTH]), number)
                if gone is not None:
                    stack.enter_context(replace_output(layer.mlp, lambda y, gone=gone: y - gone))
            logits = model(input_ids=graph.linear.ids[None]).logits[0, -1]
        assert by_feature.actual[i].item() == pytest.approx(change(logits), abs=1e-5)
    for i, (number, head) in enumerate(heads):
        drop = {  # it attends to nothing
            "weights": lambda i, w, n=number, h=head: (
                w * (torch.arange(4) != h)[:, None, None] if i == n else w
            )
        }
        with tap(model, edit=drop):
            logits = model(input_ids=graph.linear.ids[None]).logits[0, -1]
        assert by_head.actual[i].item() == pytest.approx(change(logits), abs=1e-5)


@every_model
@torch.no_grad()
def test_predictions_are_exact_for_the_last_layer_of_the_linearised_model(kind: str, gated: bool):
    model, graph = model_and_graph(kind, gated)
    last = (graph.features.layer == 2) & (graph.features.position == LENGTH - 1)
    effects, _ = ablate(model, graph, last.nonzero()[:, 0], [])
    assert effects.predicted.abs().max() > 1e-3
    torch.testing.assert_close(effects.frozen, effects.predicted, rtol=1e-3, atol=1e-4)
    assert (effects.actual - effects.predicted).abs().max() > 1e-3  # the final norm moves


@pytest.mark.parametrize("gated", [False, True])
@torch.no_grad()
def test_a_head_of_the_last_layer_acts_directly_and_through_its_mlps_features(gated: bool):
    """Its predicted effect is the sum of both, computed one by one."""
    model, graph = model_and_graph("gpt2", gated)
    heads = [(2, head) for head in range(4)]
    _, effects = ablate(model, graph, torch.tensor([0]), heads)
    mlp, norm = graph.linear.layers[2], graph.linear.final_norm
    direction = (graph.logits.probability / graph.logits.probability.sum()) @ graph.logits.direction
    assert effects.predicted.abs().max() > 0
    written = (graph.linear.head_outputs[2] - mlp.null_value[:, None]) @ mlp.outputs  # [heads, T, D]
    end = torch.zeros(1, LENGTH, graph.linear.width)
    end[0, -1] = direction
    straight = -(written * norm.pull(end)).sum((-2, -1))
    # layer 2 is the last: what its heads do beyond this goes through its own MLP's features
    through_features = effects.predicted - straight
    features = graph.features.of_layer(2)
    slope = torch.zeros(4)
    for i in range(features.start, features.stop):
        read = graph.target_gradient(torch.tensor([i]), 2)
        writes = graph.transcoder.writes(2)[graph.features.index[i], 0]
        position = int(graph.features.position[i])
        onward = (norm.pull(end)[0, position] * writes).sum()
        slope -= onward * (written * read).sum((-2, -1))  # pyright: ignore
    torch.testing.assert_close(through_features, slope, rtol=1e-3, atol=1e-4)
