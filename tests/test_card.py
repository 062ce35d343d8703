"""Model cards: what the hub and a reader need, from the folder of a twin."""

import json
from pathlib import Path
from typing import Any

import pytest
from hosts import host
from huggingface_hub import ModelCard

import edgewise
from edgewise.models.card import write_card, write_run_cards

SUMMARY = {
    "model": "someone/base", "recipe": "small", "seed": 3, "tolerance": 0.01, "dense_ce": 1.6556, "sparse_ce": 1.662,
    "delta_ce": 0.0064, "kl": 0.0123, "density": 0.0045, "edges_per_query": 0.29, "heads_closed": 35, "heads": 48,
    "tokens": 22_000_000, "seconds": 9117.5, "versions": {"torch": "2.13.0"},
    "settings": {"data": "someone/texts", "context": 128, "batch_size": 16, "learning_rate": 1e-3, "lora": None,
                 "dtype": "float32"},
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run: twin, summary, picture, but no card yet."""
    edgewise.gate(host("llama")).save_pretrained(tmp_path / "run")
    (tmp_path / "run/README.md").unlink()
    (tmp_path / "run/summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / "run/run.png").write_bytes(b"a picture")
    return tmp_path / "run"


def card_of(folder: Path) -> Any:
    return ModelCard((folder / "README.md").read_text(encoding="utf-8"))


def test_a_card_says_what_was_done_and_how_well(run):
    write_card(run, repo_id="someone/twin")
    card = card_of(run)
    assert card.data.base_model == "someone/base" and card.data.base_model_relation == "finetune"
    assert card.data.datasets == ["someone/texts"] and card.data.pipeline_tag == "text-generation"
    assert {"edgewise", "sparse-attention", "interpretability", "llama"} <= set(card.data.tags)
    assert {result.metric_type: result.metric_value for result in card.data.eval_results} == {
        "held_out_loss": 1.662,
        "density": 0.0045,
    }
    for shown in (
        "0.45%",
        "64.5",
        "0.29",
        "1.6556",
        "1.6620",
        "+0.0064",
        "0.0123",
        "35 of 48",
        "22,000,000",
        "small",
    ):
        assert shown in card.text, shown
    assert "![" in card.text and "(run.png)" in card.text and "arXiv:2512.05865" in card.text
    assert 'edgewise.load("someone/twin")' in card.text and "see its model card" in card.text


def test_a_twin_that_is_saved_again_keeps_the_figures_of_its_run(run, tmp_path):
    twin = edgewise.load(run)
    edgewise.save(twin, tmp_path / "copy")
    assert "0.45%" in card_of(tmp_path / "copy").text
    assert (tmp_path / "copy/run.png").read_bytes() == b"a picture"


def test_an_untrained_twin_says_so(tmp_path):
    twin = edgewise.gate(edgewise.load("pocket"))
    twin.save_pretrained(tmp_path)
    card = card_of(tmp_path)
    assert "figures are not known" in card.text and "`pocket`" in card.text
    assert card.data.license == "mit" and card.data.base_model is None


def test_the_licence_is_that_of_the_base(tmp_path, run):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/README.md").write_text("---\nlicense: apache-2.0\n---\nA base.\n")
    (run / "summary.json").write_text(json.dumps({**SUMMARY, "model": str(tmp_path / "base")}))
    write_card(run)
    assert card_of(run).data.license == "apache-2.0"


def test_a_card_that_somebody_wrote_stays(run):
    (run / "README.md").write_text("# By hand\n")
    assert write_card(run) is None
    edgewise.save(edgewise.load(run), run)
    assert (run / "README.md").read_text() == "# By hand\n"


def test_the_adapters_of_a_run_have_its_card_too(run):
    (run / "adapters").mkdir()
    (run / "adapters/config.json").write_text((run / "config.json").read_text())
    write_run_cards(run)
    assert "0.45%" in card_of(run).text and "0.45%" in card_of(run / "adapters").text
    assert 'edgewise.load("adapters")' in card_of(run / "adapters").text
