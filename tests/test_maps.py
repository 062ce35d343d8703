"""Attention maps of models: the heads of a circuit or given ones, on the task's prompt or a given one."""

import numpy as np
import pytest
from hosts import VOCABULARY, host
from runs import command

import edgewise
from edgewise.circuits.minimal import Explained
from edgewise.circuits.result import CircuitResult, ComponentCircuit, Curve, ModelCircuit, PrefixCircuit
from edgewise.cli.tables.maps import print_maps
from edgewise.core.errors import EdgewiseError
from edgewise.core.text import model_titles
from edgewise.maps.collect import collect_maps
from edgewise.maps.config import MapsConfig
from edgewise.maps.result import AttentionMaps
from edgewise.models.loaded import load_models
from edgewise.plots.style import save_figure

COPY = "take Adam strong project Daniel Sofia Heidi spoon take Adam strong project Daniel Sofia Heidi"


@pytest.fixture(scope="module")
def pocket() -> AttentionMaps:
    return collect_maps(["pocket", "pocket-sparse"], MapsConfig(prompt=COPY, heads="all"))


def test_maps_are_the_weights_of_the_models(pocket):
    assert [panel.title for panel in pocket.panels] == ["pocket", "Sparse pocket"]
    assert [panel.kind for panel in pocket.panels] == ["dense", "sparse"]
    assert pocket.tokens == COPY.split() and pocket.task is None and pocket.threshold is None
    dense, twin = (panel.maps for panel in pocket.panels)
    assert dense.shape == twin.shape == (48, 15, 15)
    assert np.allclose(dense.sum(-1), 1, atol=1e-5)
    assert (twin > 0).sum() < 0.25 * (dense > 0).sum()
    model = edgewise.load("pocket")
    ids = edgewise.load_tokenizer("pocket")(COPY, return_tensors="pt").input_ids
    with edgewise.tap(model, read=["weights"]) as tapped:
        model(input_ids=ids)
    assert np.allclose(dense[2 * 8 + 3], tapped.last["weights"][2][0, 3].detach())


def test_pocket_has_the_heads_of_a_copying_model(pocket):
    for panel in pocket.panels:
        types = {head: str(statistics.type) for head, statistics in panel.statistics.items()}
        assert types["L2H3"] == "previous-token" and types["L3H2"] == types["L3H1"] == "induction"
    assert sum(m.type.name == "near-empty" for m in pocket.panels[1].statistics.values()) > 10


def model_circuit(model: str, heads: list[str] | None) -> ModelCircuit:
    ranking = [(head, 1.0) for head in heads or []] + [("L0H0", 0.0)]
    prefix = PrefixCircuit(len(heads or []), Explained(0.93), [1], Curve([0, 48], [0.0, 1.0]), ranking)
    circuit = ComponentCircuit(48, prefix)
    return ModelCircuit(model, "dense", 1.0, 2.0, -2.0, 32, 0, heads=None if heads is None else circuit)


def test_heads_come_from_a_saved_circuit_without_a_search(tmp_path, capsys):
    models = [model_circuit("pocket", ["L2H3", "L1H7"]), model_circuit("pocket-sparse", None)]
    CircuitResult("copy", "logit difference", 0.9, 0, "", [{"clean": COPY}] * 32, models).save(tmp_path)
    loaded = load_models(["pocket", "pocket-sparse"])
    maps = collect_maps(loaded, MapsConfig("ioi", circuit=tmp_path, out=tmp_path / "out"))
    # made by hand: no search would find these heads, and its circuit.json would be in `out`
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"attention-maps"}
    assert (maps.task, maps.threshold, maps.prompts, maps.prompt) == ("copy", 0.9, 32, COPY)
    assert maps.panels[0].heads == ["L2H3", "L1H7"] and maps.panels[0].explained == 0.93
    assert maps.panels[1].heads == [] and "does not show copy" in maps.panels[1].note
    print_maps(maps)
    assert "does not show copy" in capsys.readouterr().out
    given = collect_maps(loaded, MapsConfig("ioi"), circuit=CircuitResult.load(tmp_path))
    assert given.to_dict() == maps.to_dict()
    assert collect_maps("pocket", MapsConfig(heads="l3h1", circuit=tmp_path)).threshold is None
    with pytest.raises(EdgewiseError, match="not of pocket-addition"):
        collect_maps("pocket-addition", MapsConfig(circuit=tmp_path, prompt="1 2 + 3 4 ="))


def test_the_command_searches_draws_and_prints(tmp_path):
    code, out, err = command("maps", "pocket", "pocket-sparse", "--prompts", "4", "--out", str(tmp_path))
    assert code == 0 and "attention-maps.json is in" in err
    for part in (
        "Sparse pocket",
        "change",
        "diagonal-dominant",
        "entropy",
        "open edges",
        "induction",
        "first token",
    ):
        assert part in out
    for ending in ("svg", "pdf", "png", "json", "safetensors"):
        assert (tmp_path / f"attention-maps.{ending}").is_file()
    maps = AttentionMaps.load(tmp_path)
    circuit = CircuitResult.load(tmp_path)
    for drawn, of in zip(maps.panels, circuit.models, strict=True):
        assert of.heads is not None
        assert drawn.heads == of.heads.best.components
    before = (tmp_path / "attention-maps.svg").read_bytes()
    (again,) = save_figure(maps.plot(), tmp_path / "again", ["svg"])
    assert again.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pocket", "pocket", "pocket"], "give one model, or a dense model and its twin, not 3"),
        (["pocket", "--heads", "L9H0"], "no head L9H0: heads go from L0H0 to L5H7"),
        (["pocket", "--heads", "5.1"], "'5.1' names no head"),
        (["pocket", "--heads", ","], "at least one head"),
        (["pocket", "--mark", "8"], "no cell"),
        (["pocket", "--columns", "0"], "--columns"),
        (["pocket", "--prompt", "take xyzzy"], "xyzzy"),
        (["pocket", "--prompt", "take"], "1 tokens; a map can have 2 to 128"),
        (["pocket", "--prompt", "take " * 200], "200 tokens"),
        (["pocket", "--circuit", "nowhere"], "holds no circuits"),
        (["pocket", "pocket-addition", "--heads", "all"], "read different tokens"),
        (["pocket", "--heads", "all", "--prompt", COPY, "--mark", "3,9"], "no cell 3,9 to mark"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, arguments, message):
    code, _, err = command("maps", *arguments, "--out", str(tmp_path))
    lines = [line for line in err.splitlines() if line.startswith("edgewise: ")]
    assert code == 2 and len(lines) == 1 and message in lines[0]


def test_loaded_models_need_their_tokenizer_and_other_architectures_work():
    model = edgewise.install(host("llama"))
    with pytest.raises(EdgewiseError, match="pass their tokenizer"):
        collect_maps(model, MapsConfig(heads="all", prompt=COPY))
    tokenizer = edgewise.load_tokenizer("pocket")
    assert len(tokenizer) > VOCABULARY
    small = " ".join(tokenizer.convert_ids_to_tokens(list(range(1, 9))))
    loaded = load_models(model, tokenizer=tokenizer)
    maps = collect_maps(loaded, MapsConfig(heads="L2H3, L0H0 L2H3", prompt=small))
    assert maps.panels[0].heads == ["L2H3", "L0H0"] and len(maps.panels[0].statistics) == 12


def test_panel_titles_are_model_names_as_in_a_paper():
    assert model_titles(["gpt2", "runs/gpt2-sparse"], ["dense", "sparse"]) == ["GPT2", "Sparse GPT2"]
    assert model_titles(["openai-community/gpt2-medium"], ["dense"]) == ["GPT2-medium"]
    assert model_titles(["pocket-sparse"], ["sparse"]) == ["Sparse pocket"]
    assert model_titles(["pocket-sparse", "pocket"], ["sparse", "dense"]) == ["Sparse pocket", "pocket"]
    assert model_titles(["a/model", "b/model"], ["dense", "dense"]) == ["a/model", "b/model"]
