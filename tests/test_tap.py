"""The tap: edge counts that agree with the attention maps, and edits that take effect."""

from typing import Any, cast

import pytest
import torch
from hosts import host, text

import edgewise
from edgewise import EdgewiseError, GateConfig


@pytest.fixture
def model():
    return edgewise.gate(host("llama"), GateConfig("relative", 2.0))


def test_counts_agree_with_the_maps(model):
    with torch.no_grad(), edgewise.tap(model) as counted:
        model(input_ids=text())
    assert not counted.last
    with torch.no_grad(), edgewise.tap(model, read=["gates"]) as mapped:
        model(input_ids=text())
    gates = torch.stack(
        [mapped.last["gates"][layer] for layer in range(3)]
    )  # [layers, batch, heads, queries, keys]
    pairs = 24 * 25 / 2
    torch.testing.assert_close(counted.density_per_head, gates.sum((-2, -1)).mean(1) / pairs)
    torch.testing.assert_close(counted.edges_per_query_per_head, gates.sum(-1).mean((1, 3)))
    assert 0 < counted.density < 1
    assert counted.edges_per_query == pytest.approx(counted.density * 25 / 2, rel=1e-5)


def test_a_dense_host_has_every_edge():
    model = edgewise.install(host("mistral"))
    with edgewise.tap(model) as activations:
        model(input_ids=text())
    assert activations.density == 1.0


def test_expected_density_is_differentiable_down_to_the_thresholds(model):
    with edgewise.mode(model, "sample"), edgewise.tap(model) as activations:
        model(input_ids=text())
    activations.expected_density.mean().backward()
    for layer in model.model.layers:
        assert (layer.self_attn.edge_gate.b.grad > 0).all()


def test_counts_accumulate_over_forward_passes(model):
    with torch.no_grad(), edgewise.tap(model) as both:
        model(input_ids=text()[:1])
        model(input_ids=text()[1:])
    with torch.no_grad(), edgewise.tap(model) as once:
        model(input_ids=text())
    torch.testing.assert_close(both.density_per_head, once.density_per_head)


def test_zeroing_a_heads_output_equals_zeroing_its_columns_of_the_projection(model):
    def ablate_head_2(layer, y):
        return y.index_fill(1, torch.tensor([2]), 0.0) if layer == 1 else None

    with torch.no_grad():
        with edgewise.tap(model, edit={"outputs": ablate_head_2}):
            edited = model(input_ids=text()).logits
        plain = model(input_ids=text()).logits
        model.model.layers[1].self_attn.o_proj.weight[:, 16:24] = 0
        removed = model(input_ids=text()).logits
    torch.testing.assert_close(edited, removed)
    assert not torch.allclose(edited, plain)


@pytest.mark.parametrize("site", ["gates", "weights"])
def test_closing_one_edge(model, site):
    def close(layer, x):
        x = x.clone()
        x[..., 5, 5] = 0
        return x

    with torch.no_grad(), edgewise.tap(model, edit={site: close}, read=["weights"]) as activations:
        model(input_ids=text())
    assert all((weights[..., 5, 5] == 0).all() for weights in activations.last["weights"].values())


def test_raising_a_score_moves_attention_there(model):
    def towards_the_first(layer, s):
        s = s.clone()
        s[..., 0] += 100
        return s

    with (
        torch.no_grad(),
        edgewise.tap(model, edit={"scores": towards_the_first}, read=["weights"]) as activations,
    ):
        model(input_ids=text())
    torch.testing.assert_close(activations.last["weights"][2][..., 0], torch.ones(2, 4, 24))


def test_taps_nest_and_close(model):
    with torch.no_grad(), edgewise.tap(model, edit={"outputs": lambda layer, y: y * 2}):
        with edgewise.tap(model, read=["outputs"]) as inner:
            doubled = model(input_ids=text()).logits
        assert inner.last["outputs"]
    assert not torch.equal(doubled, model(input_ids=text()).logits)
    with pytest.raises(RuntimeError), edgewise.tap(model, edit={"outputs": _fail}):
        model(input_ids=text())
    model(input_ids=text())  # the tap closed in spite of the error


def _fail(layer, x):
    raise RuntimeError


def test_errors_name_the_mistake(model):
    with (
        pytest.raises(EdgewiseError, match="cannot tap logits; the sites are: queries, keys"),
        edgewise.tap(model, read=cast(Any, ["logits"])),
    ):  # pyright: ignore
        pass
    with (
        pytest.raises(EdgewiseError, match="changed its shape"),
        edgewise.tap(model, edit={"outputs": lambda layer, y: y[:1]}),
    ):
        model(input_ids=text())
    with (
        edgewise.tap(model) as activations,
        pytest.raises(EdgewiseError, match="no forward pass was recorded"),
    ):
        activations.density  # noqa: B018
    with pytest.raises(EdgewiseError, match="unknown mode"), edgewise.mode(model, "closed"):  # pyright: ignore
        pass
