"""Every causal architecture of the installed transformers: what works equals its oracle, the rest is refused."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, VOCABULARY, build
from matrix import CLAIMS, row

import edgewise
from edgewise import EdgewiseError
from edgewise.circuits.replay import record
from edgewise.circuits.token_edges import token_edges
from edgewise.models.find import find_model
from edgewise.tasks.pairs import Prompts
from edgewise.training.sparsify.parameters import with_lora

QUICK = {
    "gpt2": CLAIMS, "llama": CLAIMS, "gpt_neox": CLAIMS, "gemma3_text": CLAIMS, "olmo2": CLAIMS, "glm4": CLAIMS,
    "granite": CLAIMS, "cohere": CLAIMS, "phi": CLAIMS, "opt": CLAIMS, "mixtral": CLAIMS, "gemma3": CLAIMS,
    "deepseek_v3": CLAIMS[:4], "bert": CLAIMS[:4],
    "gemma4_text": CLAIMS[:4], "modernbert-decoder": CLAIMS[:4], "gemma2": (), "granitemoehybrid": (),
}  # fmt: skip
"""Architectures that are checked at every run, and what must be exact in each; the others are slow, as they are many."""


@pytest.mark.parametrize("kind", QUICK)
def test_what_works_is_exact_and_the_rest_is_refused(kind, tmp_path):
    result = row(kind, tmp_path)
    assert not result.skipped
    assert {claim for claim, outcome in result.claims.items() if outcome == "exact"} >= {*QUICK[kind]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if kind not in QUICK])
def test_every_other_architecture_is_exact_or_refused(kind, tmp_path):
    result = row(kind, tmp_path)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.claims["loads"] != "exact" or result.claims["dense"] == "exact"


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "jamba"])
def test_info_refuses_what_load_refuses(kind, tmp_path):
    build(kind).save_pretrained(tmp_path)
    for function in (edgewise.info, edgewise.load):
        with pytest.raises(EdgewiseError, match=r"which gates cannot follow|attention registry"):
            function(tmp_path)


def test_infinity_in_a_config_is_read_as_transformers_writes_it(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"limits": [0.0, {"__float__": "Infinity"}], "low": {"__float__": "-Infinity"}})
    )
    config: Any = find_model(tmp_path).config
    assert config == {"limits": [0.0, math.inf], "low": -math.inf}


def test_a_router_that_returns_more_than_a_tensor_gets_no_adapter():
    twin = edgewise.gate(build("llama4_text"))
    trained = with_lora(twin, rank=2, seed=0)
    adapted = {name.split(".lora_A")[0] for name, _ in trained.named_parameters() if ".lora_A" in name}
    assert any(name.endswith("q_proj") for name in adapted)
    assert not any(name.endswith(("router", "lm_head")) for name in adapted)
    trained(input_ids=torch.arange(12)[None]).logits.sum().backward()


def test_token_edges_of_layers_whose_heads_differ_in_width():
    model = edgewise.gate(build("gemma4_text"))
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(1, VOCABULARY, (2, 10), generator=generator)
    corrupt = clean.roll(1, 0)
    corrupt[:, -1] = clean[:, -1]
    prompts = Prompts(clean, corrupt, torch.tensor([9, 9]), clean[:, 3:5], torch.tensor([[1.0, -1.0]] * 2))
    replay = record(model, prompts, "logit difference", reuse_prefix=False)
    assert {y.shape[-1] for y in replay.clean.outputs} == {8, 16}
    counts = token_edges(replay, 0.9)
    assert all(0 < used <= open_edges for used, open_edges in zip(counts.used, counts.open, strict=True))


def test_the_table_in_the_documents_has_a_row_for_each_architecture():
    """Its rows are written by docs/build_architectures.py."""
    page = (Path(__file__).parent.parent / "docs" / "interop.md").read_text()
    written = set(
        re.findall(r"^\| `([^`]+)` \|", page.partition("<!-- architectures: begin")[2], re.MULTILINE)
    )
    assert written == {*ARCHITECTURES}


@pytest.mark.parametrize("kind", ["gpt2", "olmo2"])
def test_the_table_says_what_the_checks_say(kind, tmp_path):
    page = (Path(__file__).parent.parent / "docs" / "interop.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith(f"| `{kind}` |"))
    outcomes = row(kind, tmp_path).claims
    assert line.count("yes") == sum(outcomes[claim] == "exact" for claim in CLAIMS[1:])
