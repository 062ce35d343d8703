"""Twins without their closed heads: the same logits, fewer parameters, a smaller key/value cache, the same names."""

import json
from typing import Any

import pytest
import torch
from hosts import host, text
from runs import command
from transformers import AutoModelForCausalLM, DynamicCache

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.gating.edge_gate import HeadShape, gates_of
from edgewise.measure.loss import measure
from edgewise.models.compact import closed_heads, heads_to_keep
from edgewise.models.expand import expand
from edgewise.models.loaded import load_models

KINDS = ("gpt2", "llama", "gpt_neox")


def twin_with_closed_heads(kind: str, null_value: bool = True, closed: int = 2):
    """A twin whose first heads of each layer are closed for good, one more in the last layer."""
    twin = edgewise.gate(host(kind), edgewise.GateConfig("relative", b=2.0, null_value=null_value)).eval()
    with torch.no_grad():
        for gate in gates_of(twin):
            gate.b[: closed + (gate is gates_of(twin)[-1])] = -1.0
            if gate.null_value is not None:
                gate.null_value.normal_(generator=torch.Generator().manual_seed(gate.layer))
    return twin


def logits(model, ids=None):
    with torch.no_grad():
        return model(input_ids=text() if ids is None else ids, use_cache=False).logits


def parameters(model) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("null_value", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_stay(kind, null_value, tmp_path):
    twin = twin_with_closed_heads(kind, null_value)
    expected = logits(twin)
    small = edgewise.compact(twin)
    assert parameters(small) < parameters(twin)
    torch.testing.assert_close(logits(small), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(twin), expected, atol=0, rtol=0)  # the original is untouched
    torch.testing.assert_close(logits(expand(small)), expected, atol=1e-5, rtol=1e-5)
    edgewise.save(small, tmp_path / "small")
    again = edgewise.load(tmp_path / "small")
    torch.testing.assert_close(logits(again), logits(small), atol=0, rtol=0)
    assert [gate.kept for gate in gates_of(again)] == [gate.kept for gate in gates_of(small)]


def test_a_compacted_twin_opens_by_auto_class_whole_or_not_at_all(tmp_path):
    small = edgewise.compact(twin_with_closed_heads("llama"))
    edgewise.save(small, tmp_path)
    for device_map in ("auto", "balanced", "cpu", {"": "cpu"}, None):
        opened: Any = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=device_map)
        assert opened.device.type == "cpu" or device_map in ("auto", "balanced")
        torch.testing.assert_close(logits(opened.cpu()), logits(small), atol=0, rtol=0)
    assert AutoModelForCausalLM.from_pretrained(tmp_path, dtype="bfloat16").dtype == torch.bfloat16
    with pytest.raises(EdgewiseError, match="stays whole"):
        AutoModelForCausalLM.from_pretrained(tmp_path, device_map={"model": "cpu", "lm_head": "cpu"})
    with pytest.raises(EdgewiseError, match="`quantization_config`"):
        edgewise.SparseTwin.from_pretrained(tmp_path, quantization_config=object())
    with pytest.raises(EdgewiseError, match="is no device"):
        edgewise.SparseTwin.from_pretrained(tmp_path, device_map="nowhere")


def test_the_cache_shrinks_and_generation_is_the_same():
    twin = twin_with_closed_heads("gpt2")
    small = edgewise.compact(twin)
    ids = text(1, 5)
    assert torch.equal(
        *(model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0) for model in (twin, small))
    )
    sizes = []
    for model in (twin, small):
        cache: Any = DynamicCache()
        model(input_ids=ids, past_key_values=cache)
        sizes.append(sum(layer.keys.numel() for layer in cache.layers))
    assert sizes[1] <= sizes[0] / 2


def test_counts_are_those_of_all_heads():
    twin = twin_with_closed_heads("gpt2")
    ids = text()
    batch = Batch(ids, ids.roll(-1, 1), None)
    whole, part = measure(twin, batch), measure(edgewise.compact(twin), batch)
    assert torch.equal(part.density_per_head, whole.density_per_head)
    assert part.ce == pytest.approx(whole.ce, abs=1e-5)


def test_groups_of_key_value_heads_stay_equal():
    shape = HeadShape(8, 4, 16)  # two query heads to a key/value head
    assert heads_to_keep(shape, [0, 1]) == [2, 3, 4, 5, 6, 7]
    assert heads_to_keep(shape, [0, 1, 3, 4, 6]) == [2, 5, 7]
    assert heads_to_keep(shape, [0, 1, 3, 4]) == [2, 3, 4, 5, 6, 7]
    assert heads_to_keep(shape, list(range(8))) == [0]


def test_what_cannot_be_compacted():
    with pytest.raises(EdgewiseError, match="dense"):
        edgewise.compact(edgewise.install(host("gpt2")))
    with pytest.raises(EdgewiseError, match="no head of this twin is closed"):
        edgewise.compact(edgewise.gate(host("gpt2"), edgewise.GateConfig("relative", b=1.0)))
    with pytest.raises(EdgewiseError, match="may open at any b"):
        closed_heads(edgewise.gate(host("gpt2"), edgewise.GateConfig("score", b=-1.0)))
    with pytest.raises(EdgewiseError, match="already"):
        edgewise.compact(edgewise.compact(twin_with_closed_heads("gpt2")))


def test_analyses_and_the_command(tmp_path):
    code, _, err = command("compact", "pocket-sparse", "--out", tmp_path / "small")
    assert code == 0, err
    assert "35 of 48 heads removed" in err or "heads removed" in err
    kept = json.loads((tmp_path / "small" / "config.json").read_text())["edgewise"]["compact"]
    small = edgewise.load(tmp_path / "small")
    assert parameters(small) < parameters(edgewise.load("pocket-sparse"))
    models = load_models(tmp_path / "small")
    assert gates_of(models.models[0])[0].heads == 8
    head = f"L5H{kept[5][0]}"
    text = 'The opposite of " large " is "'
    maps = edgewise.collect_maps(models, edgewise.MapsConfig(prompt=text, heads=head))
    whole = edgewise.collect_maps("pocket-sparse", edgewise.MapsConfig(prompt=text, heads=head))
    assert maps.panels[0].heads == [head]
    assert abs(maps.panels[0].maps - whole.panels[0].maps).max() < 1e-5
