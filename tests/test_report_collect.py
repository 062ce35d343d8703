"""The data of the report's page: every result in a folder, and a note on each that is damaged or missing."""

import base64
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import edgewise
from edgewise.circuits.prompt_maps import PromptMaps, quantise
from edgewise.core.errors import EdgewiseError
from edgewise.flow.result import Edge, Flow, Flows
from edgewise.maps.result import AttentionMaps, Panel
from edgewise.maps.statistics import head_statistics
from edgewise.reporting.collect import collect
from edgewise.reporting.packing import pack_maps
from edgewise.reporting.traces import pair_traces

MODELS = ["pocket", "pocket-sparse"]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """A folder as `edgewise circuit` and `edgewise trace` leave it."""
    folder = tmp_path_factory.mktemp("results")
    config = edgewise.CircuitConfig(
        task="antonym", prompts=4, edges=False, scrutiny=False, out=folder / "antonym"
    )
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
def results_copy(results: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(results, tmp_path / "results"))


def unpack_maps(packed: dict) -> np.ndarray:
    data = base64.b64decode(packed["data"])
    if packed["kind"] == "whole":
        return np.frombuffer(data, np.uint8).reshape(packed["shape"])
    flat = np.zeros(np.prod(packed["shape"]), np.uint8)
    count = packed["count"]
    flat[np.frombuffer(data[: 4 * count], "<u4")] = np.frombuffer(data[4 * count :], np.uint8)
    return flat.reshape(packed["shape"])


def test_collects_every_result_in_the_folder(results: Path):
    data = collect(results)
    json.dumps(data, allow_nan=False)
    assert data["notes"] == []
    assert [run["checks"] for run in data["trainings"]] == [[[10, 0.4, 0.1, None]]]
    (task,) = data["tasks"]
    assert task["task"] == "antonym"
    assert [model["model"] for model in task["models"]] == MODELS
    assert len(task["prompts"]) == 4
    prompt = task["prompts"][0]
    t = len(prompt["tokens"])
    assert [packed["shape"] for packed in prompt["maps"]] == 2 * [[6, 8, t * (t + 1) // 2]]
    assert [packed["kind"] for packed in prompt["maps"]] == ["whole", "list"]  # the twin as its open edges
    assert len(prompt["types"][0]) == 6 and len(prompt["types"][0][0]) == 8
    (pair,) = data["traces"]
    assert [trace["kind"] for trace in pair] == ["dense", "sparse"]
    assert pair[0]["contexts"]


def test_of_many_links_the_strongest_are_kept_and_paths_still_refer_to_theirs(results: Path):
    (all_links,) = collect(results)["traces"]
    (five_links,) = collect(results, max_links=5)["traces"]
    for before, after in zip(all_links, five_links, strict=True):
        assert not any("links" in warning for warning in before["warnings"])
        assert f"of {len(before['links']):,} links" in after["warnings"][-1]
        strongest = sorted((abs(link["flow"]) for link in before["links"]), reverse=True)[:5]
        flows = [abs(link["flow"]) for link in after["links"]]
        assert set(strongest) <= set(flows) and len(flows) <= 5 + len(before["paths"])
        for old, new in zip(before["paths"], after["paths"], strict=True):
            assert after["links"][new["link"]] == before["links"][old["link"]]


def test_prompt_maps_are_the_attention_weights_of_the_model(results: Path):
    maps = PromptMaps.load(results / "antonym")
    model, tokenizer = edgewise.load("pocket-sparse"), edgewise.load_tokenizer("pocket")
    example = json.loads((results / "antonym" / "circuit.json").read_text())["examples"][0]["clean"]
    ids = tokenizer(example, return_tensors="pt").input_ids
    with torch.no_grad(), edgewise.tap(model, read=["weights"]) as activations:
        model(input_ids=ids)
    weights = activations.last["weights"][4][0].numpy()
    lower = weights[:, *np.tril_indices(ids.shape[1])]
    quantised = maps.maps[1][0][4]
    expected = np.where(lower > 0, np.maximum(255 * lower, 1), 0)
    assert np.abs(quantised - expected).max() <= 0.51
    assert ((quantised > 0) == (lower > 0)).all()


def test_an_open_edge_stays_open_in_eight_bits():
    weights = np.zeros((2, 3, 3))
    weights[0, 1, 0] = 1e-6
    weights[1, 2, 2] = 1.0
    quantised = quantise(weights)
    assert quantised[0].tolist() == [0, 1, 0, 0, 0, 0]
    assert quantised[1].tolist() == [0, 0, 0, 0, 0, 255]


@pytest.mark.parametrize("density", [0.0, 0.01, 0.15, 0.3, 1.0])
def test_packing_is_lossless(density: float):
    rng = np.random.default_rng(0)
    maps = (rng.random((3, 4, 55)) < density) * rng.integers(1, 256, (3, 4, 55))
    packed = pack_maps(maps.astype(np.uint8))
    assert (unpack_maps(packed) == maps).all()
    assert packed["kind"] == ("list" if density < 0.2 else "whole")


@pytest.mark.parametrize(
    ("damage", "expected"),
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
def test_notes_name_what_is_damaged_or_missing_and_the_rest_is_collected(
    results_copy: Path, damage, expected: str
):
    damage(results_copy)
    data = collect(results_copy)
    assert any(expected in note for note in data["notes"]), data["notes"]
    assert data["tasks"] or data["traces"]


def test_a_folder_without_results_is_refused(tmp_path: Path):
    with pytest.raises(EdgewiseError, match="is no folder"):
        collect(tmp_path / "nothing")
    with pytest.raises(EdgewiseError, match="holds nothing to report: there is no circuit"):
        collect(tmp_path)
    (tmp_path / "summary.json").write_text("[]")  # not ours
    with pytest.raises(EdgewiseError, match="holds nothing to report"):
        collect(tmp_path)


def as_trace(run: str, kind: str, prompt: str = "a b") -> dict:
    return {"run": run, "kind": kind, "prompt": prompt, "tokens": prompt.split()}


def test_traces_are_paired_by_run_and_all_are_kept():
    """Two runs on the same prompt stay two pairs of a dense model and its twin."""
    runs = [
        as_trace(f"{run}/{kind}", kind) for run in ("demo/trace", "trace") for kind in ("sparse", "dense")
    ]
    pairs = pair_traces([*runs, as_trace("other", "sparse", "c d"), as_trace("long/first", "dense", "e f")])
    assert [[trace["kind"] for trace in pair] for pair in pairs] == [["dense", "sparse"]] * 2 + [
        ["sparse"],
        ["dense"],
    ]
    assert [pair[0]["label"] for pair in pairs] == ["a b (demo/trace)", "a b (trace)", "c d", "e f"]
    beside = pair_traces([as_trace("t/pocket", "dense"), as_trace("t/twin", "sparse")])
    assert [[trace["run"] for trace in pair] for pair in beside] == [["t/pocket", "t/twin"]]
    three = pair_traces([as_trace("t/a", "dense"), as_trace("t/b", "dense"), as_trace("t/c", "sparse")])
    assert [len(pair) for pair in three] == [1, 1, 1]  # whose twin is it?


def test_every_run_flow_and_map_is_there_under_a_name(results_copy: Path):
    shutil.copytree(results_copy / "antonym", results_copy / "again")
    shutil.copytree(results_copy / "run", results_copy / "second-run")
    edges = [Edge(1, 2, 1, 0, 0.5)]
    flows = Flows(
        [
            [Flow(name, kind, "a b", ["a", "b"], ["", "c"], 2, 3, edges)]
            for name, kind in (("m", "dense"), ("n", "sparse"))
        ]
    )
    flows.save(results_copy / "flow")
    statistics = {f"L{i // 3}H{i % 3}": head_statistics(np.eye(2)) for i in range(6)}
    panel = Panel("m", "M", "dense", ["L1H2"], np.eye(2, dtype=np.float32)[None], statistics)
    AttentionMaps("a b", ["a", "b"], [panel]).save(results_copy / "maps")
    (results_copy / "evaluation.json").write_text(
        json.dumps({"m": {"ce": 1.0, "density": 0.1, "edges_per_query": 2}})
    )
    data = collect(results_copy)
    assert [task["task"] for task in data["tasks"]] == [
        "antonym (again)",
        "antonym (antonym)",
        "flow of a b",
        "maps of a b",
    ]
    assert [run["run"] for run in data["trainings"]] == ["run", "second-run"]
    flow, maps = data["tasks"][2:]
    assert [model["model"] for model in flow["models"]] == ["m", "n"]
    unpacked = unpack_maps(flow["prompts"][0]["maps"][0])
    assert unpacked.shape == (2, 3, 3) and unpacked[1, 2].tolist() == [0, 128, 0] and unpacked.sum() == 128
    assert (
        maps["models"][0]["shown"] == ["L1H2"] and unpack_maps(maps["prompts"][0]["maps"][0])[1, 2, 0] == 255
    )
    assert data["evaluations"] == {"m": {"ce": 1.0, "density": 0.1, "edges_per_query": 2}}
