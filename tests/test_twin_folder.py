"""A twin's folder: whole after a kill at any moment, never opened as a dense model, and as it was saved or refused."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hosts import host, text
from killed import copies_before_each_operation
from runs import command, said
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel, LlamaForCausalLM, PreTrainedModel

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gates_of
from edgewise.models.lora import Adapters, save_adapters
from edgewise.models.weights import weight_files


def twin_of(kind: str = "llama", b: float = 2.0) -> PreTrainedModel:
    model = edgewise.gate(host(kind), edgewise.GateConfig("relative", b))
    with torch.no_grad():
        for gate in gates_of(model):
            gate.b.add_(torch.rand_like(gate.b))
    return model


def offset_of(model: PreTrainedModel) -> float:
    config = edgewise.gate_config(model)
    assert config is not None
    return config.b


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=text()).logits


@pytest.fixture
def folder(tmp_path) -> Path:
    return edgewise.save(twin_of(), tmp_path / "twin")


@pytest.fixture
def adapters(tmp_path) -> Path:
    """A twin as LoRA factors of a GPT-2, without training."""
    base = host("gpt2")
    base.save_pretrained(tmp_path / "base")
    dense = edgewise.load(tmp_path / "base")
    module = "transformer.h.0.mlp.c_fc"
    weight: Any = dense.get_submodule(module).weight
    n_in, n_out = weight.shape
    factors = {f"{module}.lora_A": torch.randn(2, n_in), f"{module}.lora_B": torch.randn(n_out, 2)}
    trained = edgewise.load(tmp_path / "base")
    Adapters(factors, 0.5).merge_into(trained)
    twin = edgewise.gate(trained, edgewise.GateConfig("relative", 2.0))
    edgewise.save(twin, tmp_path / "twin")
    save_adapters(
        tmp_path / "adapters", Adapters(factors, 0.5), tmp_path / "twin", twin, dense, str(tmp_path / "base")
    )
    assert torch.allclose(logits(edgewise.load(tmp_path / "adapters")), logits(twin), atol=1e-5)
    return tmp_path / "adapters"


# ------------------------------------------------------------------------------------------------- kills


@pytest.mark.parametrize("shards", ["5GB", "20KB"], ids=["one file", "shards"])
def test_a_kill_at_any_moment_leaves_the_old_twin_or_the_new_one(tmp_path, shards):
    old, new, folder = twin_of(b=2.0), twin_of(b=1.0), tmp_path / "twin"
    old.save_pretrained(folder, max_shard_size="20KB")
    with copies_before_each_operation(folder, tmp_path / "killed") as copies:
        new.save_pretrained(folder, max_shard_size=shards)
    assert len(copies) > 15
    observed = []
    for copy in copies:
        actual = logits(edgewise.load(copy))
        observed.append(torch.equal(actual, logits(new)))
        assert observed[-1] or torch.equal(actual, logits(old)), copy
        check_nothing_opens_dense(copy, LlamaForCausalLM)
    assert (
        observed == sorted(observed) and not observed[0] and observed[-1]
    )  # the old one, and from some moment on the new one
    for copy in copies[:: len(copies) // 5]:  # the next save cleans up
        new.save_pretrained(copy, max_shard_size=shards)
        assert {file.name for file in copy.iterdir()} == {file.name for file in folder.iterdir()}
        assert torch.equal(logits(edgewise.load(copy)), logits(new))


def test_a_first_save_that_is_killed_leaves_nothing_that_opens(tmp_path):
    model, folder = twin_of(), tmp_path / "twin"
    folder.mkdir()
    with copies_before_each_operation(folder, tmp_path / "killed") as copies:
        edgewise.save(model, folder)
    for copy in copies:
        check_nothing_opens_dense(copy, LlamaForCausalLM)
        if (copy / "config.json").is_file():
            assert torch.equal(logits(edgewise.load(copy)), logits(model))
        edgewise.save(model, copy)
        assert {file.name for file in copy.iterdir()} == {file.name for file in folder.iterdir()}


def check_nothing_opens_dense(folder: Path, cls: type[PreTrainedModel]) -> None:
    for saved in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        with pytest.raises((OSError, ValueError)):
            cls.from_pretrained(saved)


def test_where_files_cannot_be_linked_the_twin_keeps_its_second_names(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError

    monkeypatch.setattr("os.link", no_links)
    edgewise.save(twin_of(), tmp_path)
    for b, name in ((3.0, "twin2.safetensors"), (1.0, "twin.safetensors")):
        model = twin_of(b=b)
        edgewise.save(model, tmp_path)
        assert [file.name for file in tmp_path.glob("*.safetensors")] == [name]
        assert torch.equal(logits(edgewise.load(tmp_path)), logits(model))


# ------------------------------------------------------------------------------------------------- never dense


def test_transformers_own_way_of_saving_does_not_make_a_dense_model_of_a_twin(tmp_path):
    for model, base in ((twin_of(), "model"), (twin_of("gpt2"), "transformer")):
        ways = (
            lambda model=model: PreTrainedModel.save_pretrained(model, tmp_path / "a"),
            lambda model=model: type(model).save_pretrained(model, tmp_path / "a"),
            lambda model=model, base=base: getattr(model, base).save_pretrained(tmp_path / "a"),
        )
        for save in ways:
            with pytest.raises(EdgewiseError, match="is a sparse twin or a part of one"):
                save()
        assert not list(tmp_path.rglob("*.*"))
    host("gpt2").save_pretrained(tmp_path / "dense")  # which is left alone
    assert isinstance(GPT2LMHeadModel.from_pretrained(tmp_path / "dense"), GPT2LMHeadModel)


def test_a_dense_model_that_was_saved_over_a_twin_is_noticed(folder):
    host("llama").save_pretrained(folder)
    for look in (edgewise.load, edgewise.info):
        with pytest.raises(EdgewiseError, match="one was saved over the other"):
            look(folder)


# ------------------------------------------------------------------------------------------------- as it was saved


def change_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        config["edgewise"][key] = {**config["edgewise"][key], **value}
    (folder / "config.json").write_text(json.dumps(config))


def change_weights(folder: Path, change) -> None:
    (file,) = folder.glob("*.safetensors")
    state = change(load_file(file))
    file.unlink()
    save_file(state, file)


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"kind": "score"}, "kind = 'score', the twin was saved with 'relative'"),
        ({"b": 9.0}, "b = 9.0, the twin was saved with 2.0"),
        ({"sinks": False}, "sinks = False"),
        ({"null_value": True}, "null_value = True"),
    ],
    ids=str,
)
def test_a_gate_that_contradicts_the_weights_is_refused(folder, gate, message):
    change_config(folder, gate=gate)
    for look in (edgewise.load, edgewise.info):
        with pytest.raises(EdgewiseError, match=message):
            look(folder)


def test_an_edited_twin_is_refused_unless_asked_for(folder):
    change_config(folder, gate={"b": 9.0})
    assert offset_of(edgewise.load(folder, verify=False)) == 9.0
    code, _, err = command("info", folder)
    assert code == 2 and "--accept-edits" in said(err) and err.count("\n") == 1
    assert command("info", folder, "--accept-edits")[0] == 0
    assert offset_of(edgewise.load(folder)) == 9.0
    (folder / "twin-manifest.json").unlink()
    with pytest.raises(EdgewiseError, match=r"twin-manifest\.json is missing"):
        edgewise.load(folder)
    change_config(folder, host={"rope_theta": 5.0})
    command("info", folder, "--accept-edits")
    assert edgewise.load(folder).config.to_dict()


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {key: x for key, x in state.items() if "layers.1.mlp" not in key},
        lambda state: {key.replace("layers.1.mlp.up_proj", "layers.1.mlp.up"): x for key, x in state.items()},
        lambda state: {key: x.to(torch.int8) if "mlp" in key else x for key, x in state.items()},
        lambda state: {key: x > 0 if "mlp" in key else x for key, x in state.items()},
        lambda state: {key: x.to(torch.float8_e4m3fn) if "norm" in key else x for key, x in state.items()},
        lambda state: {key: x.T.contiguous() if "mlp.up" in key else x for key, x in state.items()},
        lambda state: {key: x + 1e-3 for key, x in state.items()},
    ],
    ids=["missing", "renamed", "int8", "bool", "float8", "transposed", "other values"],
)
def test_other_weights_are_refused(folder, change):
    change_weights(folder, change)
    with pytest.raises(EdgewiseError) as error:
        edgewise.load(folder)
    assert "\n" not in str(error.value) and "twin" in str(error.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn], ids=str)
def test_weights_that_would_be_converted_are_refused_even_if_edits_are_meant(folder, dtype):
    change_weights(
        folder, lambda state: {key: x.to(dtype) if "mlp" in key else x for key, x in state.items()}
    )
    with pytest.raises(EdgewiseError, match="has dtype"):
        edgewise.load(folder, verify=False)


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        (lambda state: {key: x for key, x in state.items() if "lora_A" not in key}, "no partner"),
        (lambda state: {key: x for key, x in state.items() if "lora" not in key}, "no partner"),
        (lambda state: {key.replace("c_fc", "c_proj"): x for key, x in state.items()}, "do not fit"),
        (lambda state: {key.replace("lora_", "Lora_"): x for key, x in state.items()}, "no partner"),
    ],
    ids=["no A", "no pair", "renamed", "other names"],
)
def test_lora_factors_that_are_missing_or_renamed_are_refused(adapters, change, alone):
    change_weights(adapters, change)
    with pytest.raises(EdgewiseError, match=r"lacks|unknown"):
        edgewise.load(adapters)
    with pytest.raises(EdgewiseError, match=alone):
        edgewise.load(adapters, verify=False)


def test_the_scale_of_lora_factors_is_checked_and_their_base_may_move(adapters, tmp_path):
    shutil.move(tmp_path / "base", tmp_path / "moved")
    change_config(adapters, adapters={"base": str(tmp_path / "moved")})
    edgewise.load(adapters)
    change_config(adapters, adapters={"scale": 3.0})
    with pytest.raises(EdgewiseError, match=r"adapters: scale = 3.0, the twin was saved with 0.5"):
        edgewise.load(adapters)


def test_a_shard_outside_of_the_folder_is_refused(folder, tmp_path):
    shutil.copy(folder / "twin.safetensors", tmp_path / "outside.safetensors")
    index = folder / "twin.safetensors.index.json"
    for outside in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "a/b.safetensors", ".."):
        index.write_text(json.dumps({"weight_map": {"lm_head.weight": outside}}))
        with pytest.raises(EdgewiseError, match="which is not in the folder"):
            weight_files("twin", folder, "twin.safetensors")
        with pytest.raises(EdgewiseError, match="which is not in the folder"):
            edgewise.load(folder, verify=False)
    manifest = json.loads((folder / "twin-manifest.json").read_text())
    manifest["files"] = {"../outside.safetensors": manifest["files"]["twin.safetensors"]}
    (folder / "twin-manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EdgewiseError, match="lists no files of the folder"):
        edgewise.load(folder)


@pytest.mark.parametrize("content", ["null", "{}", "[" * 10_000, '{"files": {}}', "", "\0"])
def test_a_damaged_manifest_is_one_line(folder, content):
    (folder / "twin-manifest.json").write_text(content)
    with pytest.raises(EdgewiseError, match=r"twin-manifest\.json") as error:
        edgewise.load(folder)
    assert "\n" not in str(error.value)


def test_what_a_manifest_says_is_quoted_in_part(folder):
    path = folder / "twin-manifest.json"
    manifest = json.loads(path.read_text())
    next(iter(next(iter(manifest["files"].values()))["tensors"].values()))["dtype"] = "x" * 5000
    path.write_text(json.dumps(manifest))
    with pytest.raises(EdgewiseError, match="was saved as xxx") as error:
        edgewise.load(folder)
    assert len(str(error.value)) < 1000


# ------------------------------------------------------------------------------------------------- threads


def test_four_threads_load_at_once(folder, tmp_path):
    host("llama").save_pretrained(tmp_path / "dense")
    wrong: list[BaseException] = []

    def load(name: Path) -> None:
        try:
            edgewise.load(name)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=load, args=(name,)) for name in (folder, tmp_path / "dense") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_device_that_is_not_there_is_one_sentence(folder):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    for device, message in (("cuda", "is not there"), ("nonsense", "is no device")):
        with pytest.raises(EdgewiseError, match=message):
            edgewise.load(folder, device=device)
