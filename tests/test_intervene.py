"""Interventions by hand: what is set is what was asked for, and predictions are those of the trace."""

import json
from pathlib import Path

import pytest
import torch
from traced import random_transcoder

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.tracing.config import InterventionConfig, TraceConfig
from edgewise.tracing.intervene import intervene
from edgewise.tracing.trace import trace
from edgewise.training.transcoder.transcoder import Transcoder

HOT = 'The opposite of " hot " is "'


@pytest.fixture(scope="module")
def transcoder() -> Transcoder:
    transcoder = random_transcoder(6, 128, 64)
    with torch.no_grad():
        transcoder.output_scale.fill_(0.3)
    return transcoder


def test_one_ablation_is_that_of_the_trace(transcoder: Transcoder):
    config = TraceConfig(logit="small", node_threshold=1.0, edge_threshold=1.0, ablations=4)
    (traced,) = trace("pocket-sparse", config, transcoders=transcoder)
    for kind in ("head", "feature"):
        one = next(i for i in traced.interventions if i.kind == kind)
        layer, index, position = (*one.what.split("_"), "", "")[:3]
        given = (
            {"heads": (one.what,)}
            if kind == "head"
            else {"features": (f"L{layer}/{index}@{int(position) + 1}",)}
        )
        result = intervene("pocket-sparse", InterventionConfig(**given), transcoder=transcoder)
        assert result.measured == pytest.approx(one.actual, abs=1e-3)
        assert result.predicted == pytest.approx(one.predicted, abs=1e-3)
        assert result.measured_on == traced.measured_on


def test_nothing_changes_if_values_are_kept(transcoder: Transcoder):
    same = {"heads": ("L4H1,L3-H4",), "features": ("L0/5",)}
    for change in ({"scale": 1.0}, {"patch_from": InterventionConfig.prompt}):
        result = intervene("pocket-sparse", InterventionConfig(**same, **change), transcoder=transcoder)
        assert result.changed == ["L4H1", "L3-H4", "L0/5"]
        assert result.measured == pytest.approx(0, abs=1e-3) and result.predicted == pytest.approx(
            0, abs=1e-3
        )
        assert all(p == pytest.approx(q, abs=1e-4) for _, p, q in result.next_tokens)


def test_a_patched_head_brings_the_other_prompts_answer(transcoder: Transcoder, tmp_path: Path):
    result = intervene(
        "pocket-sparse", InterventionConfig(heads=("L4H1",), patch_from=HOT), transcoder=transcoder
    )
    after = {token.strip(): q for token, _, q in result.next_tokens}
    assert max(after, key=lambda token: after[token]) == "cold" and result.measured < 0
    assert json.loads(result.save(tmp_path).read_text())["measured"] == result.measured
    assert "predicted by the graph" in repr(result)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"heads": ("L9H1",)}, "no head L9H1: `heads` go from L0H0 to L5H7"),
        ({"heads": ("x",)}, "no head x"),
        ({"features": ("L0/64",)}, "no feature L0/64: `features` go from L0/0 to L5/63"),
        ({"features": ("L0/6@9",)}, "no token 9 in L0/6@9: they are counted from 1 to 8"),
        ({"heads": ("L0H1",), "patch_from": "The opposite"}, "`patch_from` has 2 tokens and `prompt` 8"),
    ],
)
def test_what_does_not_exist_is_refused(given: dict, sentence: str, transcoder: Transcoder):
    with pytest.raises(EdgewiseError, match=sentence):
        edgewise.intervene("pocket-sparse", InterventionConfig(**given), transcoder=transcoder)
    with pytest.raises(EdgewiseError, match="name what to change in `heads`"):
        InterventionConfig()
