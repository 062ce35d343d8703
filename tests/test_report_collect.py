"""What the report's page is given: all that a folder holds, and a note on what it does not."""

import base64
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import edgewise
from edgewise.circuits.prompt_maps import PromptMaps, in_eight_bits
from edgewise.core.errors import EdgewiseError
from edgewise.report.collect import collect, packed

MODELS = ["pocket", "pocket-sparse"]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """A folder as `edgewise circuit` and `edgewise trace` leave it."""
    folder = tmp_path_factory.mktemp("results")
    config = edgewise.CircuitConfig(task="antonym", prompts=4, edges=False, out=folder / "antonym")
    edgewise.find_circuits(MODELS, config)
    for name in MODELS:
        edgewise.trace(name).save(folder / "trace" / name)
    run = folder / "run"
    run.mkdir()
    summary = {"model": "pocket", "delta_ce": 0.006, "density": 0.011, "dense_ce": 1.65, "sparse_ce": 1.656}
    (run / "summary.json").write_text(json.dumps(summary))
    steps = [{"step": 1, "tokens": 10, "beta": 0.1, "expected_density": 0.5}]
    steps.append({"step": 1, "tokens": 10, "beta": 0.1, "density": 0.4, "delta_ce": 0.1})
    (run / "log.jsonl").write_text("\n".join(map(json.dumps, steps)))
    return folder


@pytest.fixture
def copied(results: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(results, tmp_path / "results"))


def unpacked(kept: dict) -> np.ndarray:
    data = base64.b64decode(kept["data"])
    if kept["kind"] == "whole":
        return np.frombuffer(data, np.uint8).reshape(kept["shape"])
    flat = np.zeros(np.prod(kept["shape"]), np.uint8)
    count = kept["count"]
    flat[np.frombuffer(data[: 4 * count], "<u4")] = np.frombuffer(data[4 * count :], np.uint8)
    return flat.reshape(kept["shape"])


def test_everything_in_the_folder_is_there(results: Path):
    found = collect(results)
    json.dumps(found, allow_nan=False)
    assert found["notes"] == []
    assert found["training"]["checks"] == [[10, 0.4, 0.1]]
    (task,) = found["tasks"]
    assert task["task"] == "antonym"
    assert [model["model"] for model in task["models"]] == MODELS
    assert len(task["prompts"]) == 4
    prompt = task["prompts"][0]
    t = len(prompt["tokens"])
    assert [kept["shape"] for kept in prompt["maps"]] == 2 * [[6, 8, t * (t + 1) // 2]]
    assert [kept["kind"] for kept in prompt["maps"]] == ["whole", "list"]  # the twin as its open edges
    assert len(prompt["types"][0]) == 6 and len(prompt["types"][0][0]) == 8
    (pair,) = found["traces"]
    assert [each["kind"] for each in pair] == ["dense", "sparse"]
    assert pair[0]["contexts"]


def test_of_many_links_the_strongest_are_shown_and_paths_still_point_to_theirs(results: Path, monkeypatch):
    (whole,) = collect(results)["traces"]
    monkeypatch.setattr("edgewise.report.collect._MOST_LINKS", 5)
    (cut,) = collect(results)["traces"]
    for before, after in zip(whole, cut, strict=True):
        assert not any("links" in said for said in before["warnings"])
        assert f"of {len(before['links']):,} links" in after["warnings"][-1]
        strongest = sorted((abs(link["flow"]) for link in before["links"]), reverse=True)[:5]
        flows = [abs(link["flow"]) for link in after["links"]]
        assert set(strongest) <= set(flows) and len(flows) <= 5 + len(before["paths"])
        for old, new in zip(before["paths"], after["paths"], strict=True):
            assert after["links"][new["link"]] == before["links"][old["link"]]


def test_maps_are_those_of_the_model(results: Path):
    maps = PromptMaps.load(results / "antonym")
    model, tokenizer = edgewise.load("pocket-sparse"), edgewise.load_tokenizer("pocket")
    example = json.loads((results / "antonym" / "circuit.json").read_text())["examples"][0]["clean"]
    ids = tokenizer(example, return_tensors="pt").input_ids
    with torch.no_grad(), edgewise.tap(model, read=["weights"]) as seen:
        model(input_ids=ids)
    weights = seen.last["weights"][4][0].numpy()
    lower = weights[:, *np.tril_indices(ids.shape[1])]
    kept = maps.maps[1][0][4]
    expected = np.where(lower > 0, np.maximum(255 * lower, 1), 0)
    assert np.abs(kept - expected).max() <= 0.51
    assert ((kept > 0) == (lower > 0)).all()


def test_an_open_edge_is_never_lost():
    weights = np.zeros((2, 3, 3))
    weights[0, 1, 0] = 1e-6
    weights[1, 2, 2] = 1.0
    kept = in_eight_bits(weights)
    assert kept[0].tolist() == [0, 1, 0, 0, 0, 0]
    assert kept[1].tolist() == [0, 0, 0, 0, 0, 255]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.15, 0.3, 1.0])
def test_packing_loses_nothing(share: float):
    rng = np.random.default_rng(0)
    maps = (rng.random((3, 4, 55)) < share) * rng.integers(1, 256, (3, 4, 55))
    kept = packed(maps.astype(np.uint8))
    assert (unpacked(kept) == maps).all()
    assert kept["kind"] == ("list" if share < 0.2 else "whole")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda f: (f / "antonym" / "circuit.json").write_text("{"),
            "antonym/circuit.json could not be read",
        ),
        (
            lambda f: (f / "trace" / "pocket" / "trace.safetensors").unlink(),
            "trace/pocket/trace.json could not",
        ),
        (lambda f: (f / "antonym" / "prompt-maps.json").unlink(), "antonym has no prompt-maps.json"),
        (
            lambda f: (f / "antonym" / "prompt-maps.safetensors").write_bytes(b"x"),
            "circuit.json could not be read",
        ),
        (lambda f: (f / "run" / "log.jsonl").write_text("{"), "run/summary.json could not be read"),
        (lambda f: shutil.rmtree(f / "trace"), "no traces in this report"),
        (lambda f: shutil.rmtree(f / "run"), "no runs of post-training in this report"),
    ],
)
def test_what_is_damaged_or_missing_is_named_and_the_rest_is_there(copied: Path, damage, said: str):
    damage(copied)
    found = collect(copied)
    assert any(said in note for note in found["notes"]), found["notes"]
    assert found["tasks"] or found["traces"]


def test_a_folder_without_results_is_one_line(tmp_path: Path):
    with pytest.raises(EdgewiseError, match="is no folder"):
        collect(tmp_path / "nothing")
    with pytest.raises(EdgewiseError, match="holds nothing to report: there is no circuit"):
        collect(tmp_path)
    (tmp_path / "summary.json").write_text("[]")  # somebody else's
    with pytest.raises(EdgewiseError, match="holds nothing to report"):
        collect(tmp_path)
