"""Total effects with nothing frozen: their parts add up to what is measured, and small steps are gradients."""

from collections.abc import Iterator

import pytest
import torch
from traced import LENGTH, model_and_graph

from edgewise.tracing.ablations import Ablation, average_embedding, changes, run_ablated
from edgewise.tracing.graph_predictions import predicted_effects
from edgewise.tracing.total_effects import gradient_effects, integrated_effects

every_gpt = pytest.mark.parametrize(("kind", "gated"), [("gpt2", False), ("gpt2", True), ("gpt_neox", True)])
ABLATIONS = [
    *(Ablation(features=(f,)) for f in (0, 3, 20)),
    *(Ablation(heads=(head,)) for head in ((0, 1), (1, 0), (2, 3))),
    *(Ablation(tokens=(position,)) for position in (0, 2, LENGTH - 1)),
]


@pytest.fixture
def double() -> Iterator[None]:
    """float64 for everything made in the test."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@every_gpt
@pytest.mark.usefixtures("double")
def test_the_parts_add_up_to_the_measured_effect(kind: str, gated: bool):
    """In float64, whatever the number of steps; gates that close and features that switch are in the sum."""
    model, graph = model_and_graph(kind, gated)
    with torch.no_grad():
        change = changes(graph, ABLATIONS, average_embedding(model, graph))
        none = changes(graph, [Ablation()], average_embedding(model, graph))
        odds = [graph.logits.log_odds(run_ablated(model, graph, c)) for c in (change, none)]
    measured = odds[0] - odds[1]
    assert (measured.abs() > 1e-4).sum() > 6
    for steps in (1, 3):
        effects = integrated_effects(model, graph, ABLATIONS, steps)
        torch.testing.assert_close(effects.measured, measured, rtol=0, atol=1e-10)
        torch.testing.assert_close(effects.total, measured, rtol=0, atol=1e-9)
    for part in (effects.values, effects.attention, effects.norms, effects.errors):
        assert part.abs().max() > 1e-4  # none is empty


@every_gpt
@pytest.mark.usefixtures("double")
def test_gradients_are_small_steps_in_the_replaced_model(kind: str, gated: bool):
    """Against differences of the replaced model's log odds; and their parts along values are the graph's predictions."""
    from edgewise.tracing.replaced_model import run_replaced

    model, graph = model_and_graph(kind, gated)
    effects = gradient_effects(model, graph)
    with torch.no_grad():
        change, step = changes(graph, ABLATIONS, average_embedding(model, graph)), 1e-5
        ends = [run_replaced(model, graph, change, s).log_odds for s in (-step, step)]
        expected = (ends[1] - ends[0]) / (2 * step)
        by_feature, by_head = predicted_effects(graph)
    total = [
        *(effects.features.total[a.features[0]] for a in ABLATIONS if a.features),
        *(effects.heads.total[a.heads[0]] for a in ABLATIONS if a.heads),
        *(effects.tokens.total[a.tokens[0]] for a in ABLATIONS if a.tokens),
    ]
    torch.testing.assert_close(torch.stack(total), expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(effects.features.values, by_feature, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(effects.heads.values, by_head, rtol=1e-5, atol=1e-8)


@pytest.mark.usefixtures("double")
def test_an_ablation_before_nothing_moves_no_attention():
    """The last layer's feature at the last position reaches the logits through the final norm alone."""
    model, graph = model_and_graph("gpt2", False)
    last = (graph.features.layer == 2) & (graph.features.position == LENGTH - 1)
    ablations = [Ablation(features=(int(f),)) for f in last.nonzero()[:, 0]]
    effects = integrated_effects(model, graph, ablations)
    assert not effects.attention.any() and not effects.errors.any()
    assert effects.values.abs().max() > 1e-3 and effects.norms.abs().max() > 1e-5
    torch.testing.assert_close(effects.replaced, effects.measured)
