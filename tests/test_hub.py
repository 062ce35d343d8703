"""Twins on the hub, by every way in: against a stand-in that answers huggingface_hub as the hub does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import TOKEN, Hub, serve
from huggingface_hub import ModelCard

PULL = Path(__file__).parent / "pull_from_hub.py"
"""Opens twins in a process of its own: huggingface_hub reads the address of the hub when it is imported."""


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> tuple[Hub, dict[str, object]]:
    """What the stand-in holds after a session, and what the session saw."""
    folder = tmp_path_factory.mktemp("hub")
    with serve() as hub:
        environment = {
            **os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": TOKEN,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, str(PULL), str(folder)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return hub, json.loads(done.stdout.splitlines()[-1])


WAYS = (
    "by name", "main", "commit", "device_map", "cache_dir", "local_files_only", "force_download", "token",
    "trust_remote_code",
)  # fmt: skip


@pytest.mark.parametrize("opener", ["auto", "SparseTwin"])
@pytest.mark.parametrize("way", WAYS)
def test_a_twin_on_the_hub_opens_with_the_arguments_of_a_dense_model(way, opener, published):
    _, seen = published
    assert seen[f"{opener}, {way}"] == pytest.approx(seen["main"], rel=1e-6)


@pytest.mark.parametrize("opener", ["auto", "SparseTwin"])
@pytest.mark.parametrize("way", ["v2", "subfolder", "all together", "all together, offline"])
def test_another_revision_is_another_model(way, opener, published):
    _, seen = published
    assert seen[f"{opener}, {way}"] == pytest.approx(seen["v2"], rel=1e-6)
    assert abs(seen["v2"] - seen["main"]) > 1e-3


@pytest.mark.parametrize("opener", ["auto", "SparseTwin"])
def test_a_private_twin_opens_with_its_token_only(opener, published):
    _, seen = published
    for way in ("token of a private one", "private by the environment's token"):
        assert seen[f"{opener}, {way}"] == pytest.approx(seen["v2"], rel=1e-6), way
    for way in ("private without a token", "private, token=False"):
        assert "someone/private" in seen[f"{opener}, {way}"], way


def test_a_twin_has_the_precision_that_was_asked_for(published):
    _, seen = published
    assert seen["AutoModelForCausalLM, dtype"] == seen["SparseTwin, dtype"] == "torch.bfloat16"
    assert seen["pipeline with options"] == "torch.bfloat16"


def test_offline_a_twin_opens_from_the_cache(published):
    _, seen = published
    assert seen["edgewise.load, offline"] == pytest.approx(seen["main"], rel=1e-6)
    assert isinstance(seen["auto, offline"], float) and seen["auto, offline"] == seen["SparseTwin, offline"]


def test_edgewise_load_config_tokenizer_and_pipeline(published):
    _, seen = published
    assert seen["edgewise.load"] == pytest.approx(seen["main"], rel=1e-6)
    assert seen["config"] == 3
    assert seen["tokenizer"] and seen["pipeline"].strip() == "small"


def test_what_is_not_there_is_said_in_a_sentence(published):
    _, seen = published
    assert "has no revision v3" in seen["SparseTwin, a revision that is not there"]
    assert "not in the local cache" in seen["SparseTwin, local_files_only without a cache"]
    assert "no model named someone/nothing" in seen["SparseTwin, no such repository"]


def test_what_is_uploaded_is_a_twin(published):
    hub, _ = published
    repository = hub.repositories["someone/a-twin"]
    files = repository.commits[repository.refs["main"]]
    assert "twin.safetensors" in files and "model.safetensors" not in files
    assert any(request.startswith("PUT /lfs/") for request in hub.requests)


def test_transcoders_go_to_the_hub_and_back(published):
    hub, seen = published
    assert seen["transcoder"] == 0 and hub.repositories["someone/transcoder"].private
    assert seen["transcoder, local_files_only"] == pytest.approx(seen["encoder"])
    for way in ("revision", "folder", "subfolder"):
        assert seen[f"transcoder, {way}"] == pytest.approx(2 * seen["encoder"]), way
    assert seen["transcoder, dtype"] == "torch.bfloat16"
    assert "has no revision v3" in seen["transcoder, no such revision"]
    assert "no model named someone/transcoder" in seen["transcoder, token=False"]
    assert "`device_map` one device" in seen["transcoder, two devices"]
    assert "holds something else" in seen["no transcoder"] or "no transcoder" in seen["no transcoder"]


def test_an_upload_without_the_right_to_it_is_refused_in_a_sentence(published):
    _, seen = published
    assert "log in with `hf auth login`" in seen["pushed without a right to"]


@pytest.mark.parametrize("name", ["a-twin", "pocket-sparse", "transcoder"])
def test_every_upload_has_a_model_card_that_the_hub_can_read(name, published):
    hub, _ = published
    repository = hub.repositories[f"someone/{name}"]
    card: Any = ModelCard(repository.commits[repository.refs["main"]]["README.md"].decode())
    assert card.data.library_name == "edgewise" and "interpretability" in card.data.tags
    assert f"'someone/{name}'" in card.text
