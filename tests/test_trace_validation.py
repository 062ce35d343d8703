"""Validation by intervention: predictions are total effects, ablations are done in the model itself."""

from contextlib import ExitStack

import pytest
import torch
from torch import Tensor
from traced import LENGTH, every_model, model_and_graph

from edgewise.gating.tap import tap
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_output
from edgewise.tracing.ablations import Ablation
from edgewise.tracing.graph_predictions import predicted_effects
from edgewise.tracing.validation import (
    ablation_names,
    correlations,
    frozen_changes,
    validate,
)


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
    which, heads = [3, 20], [(0, 1), (2, 3)]
    ablations = [*(Ablation(features=(f,)) for f in which), *(Ablation(heads=(h,)) for h in heads)]
    tested = validate(model, graph, ablations, ablation_names(graph, ablations))
    tokens = {
        int(token): weight for token, weight in zip(graph.logits.tokens, graph.logits.weights, strict=True)
    }

    def change(logits: Tensor) -> float:
        others = [i for i in range(len(logits)) if i not in tokens]
        odds = [
            sum(weight * x[token] for token, weight in tokens.items()) - x[others].logsumexp(0)
            for x in (logits, graph.linear.logits)
        ]
        return float(odds[0] - odds[1])

    for i, feature in enumerate(which):
        with ExitStack() as stack:
            for number, layer in enumerate(architecture_of(model).layers):
                gone = graph.source_write(torch.tensor([feature + LENGTH]), number)
                if gone is not None:
                    stack.enter_context(replace_output(layer.mlp_out, lambda y, gone=gone: y - gone))
            logits = model(input_ids=graph.linear.ids[None]).logits[0, -1]
        assert tested[i].actual == pytest.approx(change(logits), abs=1e-5)
    for i, (number, head) in enumerate(heads):
        drop = {  # it attends to nothing
            "weights": lambda i, w, n=number, h=head: (
                w * (torch.arange(4) != h)[:, None, None] if i == n else w
            )
        }
        with tap(model, edit=drop):
            logits = model(input_ids=graph.linear.ids[None]).logits[0, -1]
        assert tested[2 + i].actual == pytest.approx(change(logits), abs=1e-5)


@every_model
@torch.no_grad()
def test_predictions_are_exact_for_the_last_layer_of_the_linearised_model(kind: str, gated: bool):
    model, graph = model_and_graph(kind, gated)
    last = ((graph.features.layer == 2) & (graph.features.position == LENGTH - 1)).nonzero()[:, 0]
    measured = frozen_changes(model, graph, [Ablation(features=(int(feature),)) for feature in last])
    predicted = predicted_effects(graph)[0][last]
    assert predicted.abs().max() > 1e-3
    torch.testing.assert_close(measured, predicted, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_every_kind_is_correlated_with_each_prediction():
    model, graph = model_and_graph("gpt2", True)
    ablations = [
        *(Ablation(features=(feature,)) for feature in (1, 5, 9, 14)),
        *(Ablation(heads=(head,)) for head in ((0, 0), (1, 2), (2, 1))),
        *(Ablation(tokens=(position,)) for position in range(LENGTH)),
    ]
    tested = validate(model, graph, ablations, ablation_names(graph, ablations))
    r = correlations(tested)
    assert {name.split("_")[0] for name in r} == {"feature", "head", "token"} and len(r) == 12
    assert all(value is not None and -1 <= value <= 1 for value in r.values())
    for one in tested:
        assert one.values + one.attention + one.norms + one.errors == pytest.approx(one.actual, abs=1e-5)
        assert abs(getattr(one, one.route)) == max(
            map(abs, (one.values, one.attention, one.norms, one.errors))
        )
        assert sum(abs(effect) for _, effect in one.moved) >= abs(one.attention) * 0.5


@pytest.mark.parametrize("gated", [False, True])
@torch.no_grad()
def test_a_head_of_the_last_layer_acts_directly_and_through_its_mlps_features(gated: bool):
    """Its predicted effect is the sum of both, computed one by one."""
    _, graph = model_and_graph("gpt2", gated)
    predicted = predicted_effects(graph)[1][2]
    mlp, norm = graph.linear.layers[2], graph.linear.final_norm
    direction = (graph.logits.probability / graph.logits.probability.sum()) @ graph.logits.direction
    assert predicted.abs().max() > 0
    written = (graph.linear.head_outputs[2] - mlp.null_value[:, None]) @ mlp.outputs  # [heads, T, D]
    end = torch.zeros(1, LENGTH, graph.linear.width)
    end[0, -1] = direction
    straight = -(written * norm.pull(end)).sum((-2, -1))
    # layer 2 is the last: what its heads do beyond this goes through its own MLP's features
    through_features = predicted - straight
    features = graph.features.of_layer(2)
    slope = torch.zeros(4)
    for i in range(features.start, features.stop):
        read = graph.target_gradient(torch.tensor([i]), 2)
        writes = graph.transcoder.writes(2)[graph.features.index[i], 0]
        position = int(graph.features.position[i])
        onward = (norm.pull(end)[0, position] * writes).sum()
        slope -= onward * (written * read).sum((-2, -1))  # pyright: ignore
    torch.testing.assert_close(through_features, slope, rtol=1e-3, atol=1e-4)
