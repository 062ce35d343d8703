"""The shipped transcoders are those of the shipped models, and as good as the docs say."""

import pytest
import torch

import edgewise
from edgewise import pocket
from edgewise.core.errors import EdgewiseError
from edgewise.data import embedded_data
from edgewise.training.transcoder.evaluation import evaluate_transcoder

MODELS = ("pocket", "pocket-sparse")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_they_explain(name: str):
    model = edgewise.load(name)
    transcoder = edgewise.load_transcoder(pocket.folder(name) / "transcoder", model)
    held_out = embedded_data("pocket", 0).held_out.select(slice(64))  # pyright: ignore
    actual = evaluate_transcoder(model, transcoder, held_out)
    assert min(actual.explained_variance) > 0.95
    assert actual.replaced_loss - actual.loss < 0.05
    assert sum(actual.l0) / 6 < 16


@pytest.mark.parametrize("name", MODELS)
def test_each_belongs_to_its_model_only(name: str):
    other = edgewise.load(next(each for each in MODELS if each != name))
    with pytest.raises(EdgewiseError):
        edgewise.load_transcoder(pocket.folder(name) / "transcoder", other)


@pytest.mark.slow
def test_the_twin_needs_fewer_heads_for_large_to_small():
    counts = {}
    for name in MODELS:
        (actual,) = edgewise.trace(name)
        assert actual.logits[0][0].strip() == "small"
        assert actual.tokens[actual.main_key] == "large"
        assert actual.metrics["closure"] < 1e-5
        assert actual.metrics["feature_correlation_frozen"] > 0.7  # of the 100 most influential nodes
        assert actual.contexts and all(
            node.origin is not None for node in actual.nodes if node.kind == "feature"
        )
        counts[name] = len(actual.heads_at(0.8))
        first = [f"L{layer}H{head}" for layer, head, _ in actual.heads_at(0.8, key=4, query=7)][:2]
        assert first == ["L4H1", "L3H4"]
    assert counts["pocket"] >= 3 * counts["pocket-sparse"]


def test_they_are_small():
    for name in MODELS:
        assert (pocket.folder(name) / "transcoder" / "transcoder.safetensors").stat().st_size < 4e6


@pytest.mark.slow
@torch.no_grad()
def test_a_trace_of_another_logit():
    (actual,) = edgewise.trace("pocket", edgewise.TraceConfig(logit="cold"))
    assert [text.strip() for text, _ in actual.logits] == ["cold"]
