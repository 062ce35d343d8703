"""Importance of heads, closing those of least importance, and going on from a twin."""

from typing import Any

import pytest
import torch
from runs import BeforeStep, save_host, save_llama_and_text, settings
from test_layerwise import KINDS, rows_of

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.data import IGNORE
from edgewise.gating.edge_gate import attention_modules, gates_of
from edgewise.measure.distillation import distillation_terms
from edgewise.measure.forward import run_model
from edgewise.models.architecture import out_weights
from edgewise.training.sparsify.head_closing import head_importance
from edgewise.training.sparsify.layerwise import fisher_metrics
from edgewise.training.sparsify.parameters import with_lora


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return save_llama_and_text(tmp_path_factory.mktemp("closing"))


def test_importance_is_the_divergence_that_closing_a_small_head_adds(workspace):
    twin = edgewise.load(workspace / "llama").double()
    batch = rows_of(workspace, "llama", 64)
    with torch.no_grad():
        modules: list[Any] = attention_modules(twin)
        for module in modules:  # small enough for the second order
            module.o_proj.weight *= 1e-2
    metrics = fisher_metrics(twin, batch, micro_batch_size=16, seed=0)
    with torch.no_grad():
        importance = head_importance(twin, metrics, batch, micro_batch_size=16)
        own = run_model(twin, batch)
        for layer, gate in enumerate(gates_of(twin)):
            for head in range(gate.heads):

                def close(index: int, y, layer=layer, head=head):
                    return y.index_fill(1, torch.tensor([head]), 0.0) if index == layer else y

                with edgewise.tap(twin, edit={"outputs": close}):
                    closed = run_model(twin, batch)
                terms = distillation_terms(closed, own, batch.targets)
                kl = (terms.kl / (batch.targets != IGNORE).sum()).item()
                assert importance[layer, head].item() == pytest.approx(kl, rel=0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_out_weights_are_what_a_head_writes(kind, tmp_path):
    """Adapters included, which peft puts around the output projection."""
    model = edgewise.load(save_host(tmp_path / kind, kind))
    trained = with_lora(model, rank=2, seed=0)
    attention: Any = attention_modules(trained)[0]
    out = attention.o_proj if kind == "llama" else attention.c_proj
    torch.nn.init.ones_(out.lora_B["default"].weight)
    y = torch.randn(1, 4, 8)
    bias = 0 if out.bias is None else out.bias
    expected = out(y.flatten(1)) - bias
    torch.testing.assert_close(torch.einsum("bhd,hdD->bD", y, out_weights(attention)), expected)


def test_a_share_of_the_heads_is_closed_for_good_of_least_importance(workspace, tmp_path):
    seen: list[Any] = []

    def silence(run: Any) -> None:
        """Three heads write nothing: of no importance."""
        for layer, head in ((0, 1), (0, 3), (1, 2)):
            width = gates_of(run.twin.inner)[0].width
            module: Any = attention_modules(run.twin.inner)[layer]
            module.o_proj.weight.data[:, head * width : (head + 1) * width] = 0

    def look(run: Any) -> None:
        seen.append(run.twin.frozen_heads)

    config = settings(
        tmp_path / "run", steps=20, close_heads=0.375, tolerance=10.0, lr=1e-6, layerwise_warmup=None
    )
    edgewise.sparsify(
        workspace / "llama",
        workspace / "text.txt",
        config,
        callbacks=[BeforeStep(0, silence), BeforeStep(19, look)],
    )
    assert seen == [[[False, True, False, True], [False, False, True, False]]]
    assert [(gate.b < -6).tolist() for gate in gates_of(edgewise.load(tmp_path / "run"))] == seen[0]


def test_no_head_is_closed_while_the_constraint_is_broken(workspace, tmp_path):
    config = settings(tmp_path / "run", steps=20, close_heads=0.5, tolerance=1e-6, b=0.5)
    result = edgewise.sparsify(workspace / "llama", workspace / "text.txt", config)
    assert all((gate.b > -6).sum() >= gate.heads - 2 for gate in gates_of(result.twin))


def test_a_score_gate_closes_no_heads(workspace, tmp_path):
    config = settings(tmp_path / "run", close_heads=0.5, gate="score")
    with pytest.raises(EdgewiseError, match="`close_heads` needs the gate `relative`"):
        edgewise.sparsify(workspace / "llama", workspace / "text.txt", config)


@pytest.mark.parametrize("lora", [None, 2])
def test_a_run_goes_on_from_a_twin(workspace, tmp_path, lora):
    """At a learning rate of nothing it stays the twin that it started from."""
    model, text = str(workspace / "llama"), workspace / "text.txt"
    first = edgewise.sparsify(
        model, text, settings(tmp_path / "first", b=2.0, sinks=False, lora=lora, lr=1e-2)
    )
    start = tmp_path / "first" / ("adapters" if lora else "")
    more = settings(tmp_path / "more", steps=2, start_from=str(start), lora=lora, lr=1e-9)
    second = edgewise.sparsify(model, text, more)
    ids = torch.arange(24)[None]
    torch.testing.assert_close(second.twin(ids).logits, first.twin(ids).logits, rtol=1e-3, atol=1e-4)
    config = gates_of(second.twin)[0].config
    assert config is not None and not config.sinks
    assert f"| started from the twin | {start} |" in (tmp_path / "more" / "README.md").read_text()
    if lora:
        twin = edgewise.load(tmp_path / "more" / "adapters")
        torch.testing.assert_close(twin(ids).logits, second.twin(ids).logits, rtol=1e-3, atol=1e-4)


def test_what_no_run_can_start_from_is_refused(workspace, tmp_path):
    model, text = str(workspace / "llama"), workspace / "text.txt"

    def refused(message: str, **others):
        with pytest.raises(EdgewiseError, match=message):
            edgewise.sparsify(model, text, settings(tmp_path / "refused", **others))

    refused("is a dense model", start_from=model)
    edgewise.sparsify(model, text, settings(tmp_path / "full", b=2.0))
    refused("has no adapters of its own", start_from=str(tmp_path / "full"), lora=2)
    refused("the gate is that of", start_from=str(tmp_path / "full"), b=3.0)
    edgewise.sparsify(model, text, settings(tmp_path / "lora", lora=2))
    refused("have rank 2", start_from=str(tmp_path / "lora" / "adapters"), lora=4)
    refused("is no twin of this model", start_from="pocket-sparse")
