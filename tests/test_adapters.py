"""A LoRA twin as changes of its base: the same twin as the one that is saved whole, or a reason why not."""

import json
import shutil

import pytest
import torch
from runs import CONTEXT, command, farthest, said, save_host, save_text, settings
from transformers import AutoModelForCausalLM

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.models.registry import embedded, embedded_origin
from edgewise.models.twin_format import ADAPTERS_FILE

KINDS = ("gpt2", "llama")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Models, and a run of each with adapters."""
    workspace = tmp_path_factory.mktemp("workspace")
    text = save_text(workspace / "text.txt")
    for kind in KINDS:
        dtype = torch.bfloat16 if kind == "llama" else torch.float32  # twins are in single precision
        host = save_host(workspace / kind, kind, dtype)
        edgewise.sparsify(host, text, settings(workspace / f"{kind}-run", lora=2, sinks=kind == "gpt2"))
    return workspace


@pytest.fixture
def run(runs, tmp_path):
    """The run with GPT-2, to be spoilt."""
    return shutil.copytree(runs / "gpt2-run", tmp_path / "run")


def change_base(folder, base) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["edgewise"]["adapters"]["base"] = str(base)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_the_twin_bit_for_bit(runs, kind, tmp_path):
    whole, small = (edgewise.load(runs / f"{kind}-run" / part) for part in ("", "adapters"))
    assert farthest(whole.state_dict(), small.state_dict()) == 0
    dense = edgewise.load(runs / kind).float().state_dict()
    assert farthest({k: whole.state_dict()[k] for k in dense}, dense) > 0
    ids = torch.arange(2 * CONTEXT).view(2, -1)
    with torch.no_grad():
        assert torch.equal(whole(input_ids=ids).logits, small(input_ids=ids).logits)
        again = edgewise.load(edgewise.save(small, tmp_path / "again"))
        assert torch.equal(whole(input_ids=ids).logits, again(input_ids=ids).logits)
    assert edgewise.load(runs / f"{kind}-run/adapters", dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_commands_take_them_for_the_twin(runs, kind):
    whole, small = (edgewise.info(runs / f"{kind}-run" / part) for part in ("", "adapters"))
    assert small.gate == whole.gate and small.parameters == whole.parameters
    names = [runs / f"{kind}-run", runs / f"{kind}-run/adapters"]
    actual = edgewise.evaluate_models(names, runs / "text.txt", tokens=500)
    first, second = actual.values()
    assert first.density == second.density
    assert second.ce == pytest.approx(
        first.ce, abs=1e-6
    )  # the first is recorded layer by layer, as a reference for KL
    assert second.against_dense is not None and second.against_dense.kl == 0
    assert command("eval", *names, "--data", runs / "text.txt", "--tokens", 500)[0] == 0


def test_they_are_small(runs):
    size = {
        part: (runs / "gpt2-run" / part).stat().st_size
        for part in ("twin.safetensors", f"adapters/{ADAPTERS_FILE}")
    }
    assert min(size.values()) == size[f"adapters/{ADAPTERS_FILE}"] < size["twin.safetensors"] / 4


def test_nothing_opens_them_as_a_dense_model(runs):
    from peft import PeftModel

    folder = runs / "gpt2-run/adapters"
    host = AutoModelForCausalLM.from_pretrained(runs / "gpt2")
    with pytest.raises((ValueError, OSError)):
        PeftModel.from_pretrained(host, str(folder))
    opened = AutoModelForCausalLM.from_pretrained(folder)  # edgewise is imported: gated
    assert farthest(opened.state_dict(), edgewise.load(folder).state_dict()) == 0


def test_a_base_that_moved_can_be_named(runs, run):
    change_base(run / "adapters", "moved/away")
    code, _, err = command("info", run / "adapters")
    assert code == 0, err  # its config says all that is asked
    with pytest.raises(EdgewiseError, match=r"a change of 'moved/away'.*config\.json, after \"base\""):
        edgewise.load(run / "adapters")
    change_base(run / "adapters", runs / "gpt2")
    assert farthest(edgewise.load(run / "adapters").state_dict(), edgewise.load(run).state_dict()) == 0


def test_another_base_is_refused(runs, run, tmp_path):
    host = edgewise.load(runs / "gpt2")
    with torch.no_grad():
        next(iter(host.parameters())).mul_(1.001)
    other = edgewise.save(host, tmp_path / "other")
    for base in (other, runs / "llama", runs / "gpt2-run"):
        change_base(run / "adapters", base)
        with pytest.raises(EdgewiseError, match="a change of"):
            edgewise.load(run / "adapters")


def test_damage_is_one_line(runs, run):
    file = run / "adapters" / ADAPTERS_FILE
    file.write_bytes(file.read_bytes()[:-100])
    for words in (
        ("info", run / "adapters"),
        ("eval", runs / "gpt2", run / "adapters", "--data", runs / "text.txt"),
    ):
        code, _, err = command(*words)
        assert code == 2 and "truncated or damaged" in said(err)
    file.unlink()
    with pytest.raises(EdgewiseError, match="missing from the folder"):
        edgewise.load(run / "adapters")


def test_they_can_be_opened_from_anywhere(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(runs)
    edgewise.sparsify("gpt2", "text.txt", settings(tmp_path / "run", steps=1, lora=2))
    monkeypatch.chdir(tmp_path)
    assert farthest(edgewise.load("run/adapters").state_dict(), edgewise.load("run").state_dict()) == 0


def test_of_a_base_in_another_precision(runs, tmp_path):
    base = edgewise.load(runs / "gpt2", dtype=torch.bfloat16)
    tokenizer = edgewise.load_tokenizer(runs / "gpt2")
    edgewise.sparsify(
        base, runs / "text.txt", settings(tmp_path / "run", steps=1, lora=2), tokenizer=tokenizer
    )
    assert (
        farthest(
            edgewise.load(tmp_path / "run/adapters").state_dict(),
            edgewise.load(tmp_path / "run").state_dict(),
        )
        == 0
    )


def test_a_twin_of_an_embedded_model_is_known_by_its_adapters(tmp_path):
    config = {"edgewise": {"adapters": {"base": "pocket"}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert embedded_origin(tmp_path) is embedded("pocket")
    assert embedded_origin(tmp_path / "none") is None and embedded_origin("") is None


def test_without_a_name_for_the_base_there_are_none(runs, tmp_path):
    base = edgewise.load(runs / "gpt2")
    base.name_or_path = base.config.name_or_path = ""
    tokenizer = edgewise.load_tokenizer(runs / "gpt2")
    edgewise.sparsify(
        base, runs / "text.txt", settings(tmp_path / "run", steps=1, lora=2), tokenizer=tokenizer
    )
    assert (tmp_path / "run/twin.safetensors").is_file() and not (tmp_path / "run/adapters").exists()


def test_a_run_without_adapters_writes_none(runs, tmp_path):
    edgewise.sparsify(runs / "gpt2", runs / "text.txt", settings(tmp_path / "run", steps=1))
    assert not (tmp_path / "run/adapters").exists()
