"""The command line: help that lists what there is, and one clear line with exit code 2 for bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import host
from transformers.models.bloom import BloomConfig, BloomForCausalLM
from transformers.models.mamba import MambaConfig, MambaForCausalLM
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

import edgewise
from edgewise.cli import main as cli


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["edgewise", *arguments])
    capsys.readouterr()
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def folder(tmp_path) -> Path:
    host("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_help_lists_every_command_without_loading_torch():
    code = (
        "import sys; sys.argv = ['edgewise', '--help']\n"
        "from edgewise.cli.main import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert all(command in out for command in cli.COMMANDS) and out.endswith("False\n")


def test_info_of_a_dense_model(monkeypatch, capsys, folder):
    code, out, _ = run(monkeypatch, capsys, "info", str(folder))
    assert code == 0
    for part in (
        "LlamaForCausalLM",
        "3 layers x 4 heads on 2 key/value heads",
        "dense",
        "float32",
        "64 tokens",
        "MB",
    ):
        assert part in out
    parameters = sum(p.numel() for p in host("llama").parameters())
    assert f"{parameters:,}" in out


def test_info_of_a_twin_as_json(monkeypatch, capsys, tmp_path):
    edgewise.save(edgewise.gate(host("gpt2"), edgewise.GateConfig("relative", 2.5)), tmp_path)
    code, out, _ = run(monkeypatch, capsys, "info", str(tmp_path), "--json")
    described = json.loads(out)
    assert (
        code == 0
        and described["gate"] == {"kind": "relative", "b": 2.5, "sinks": True, "null_value": False}
        and described["heads"] == 4
    )
    assert described["parameters"] == sum(p.numel() for p in edgewise.load(tmp_path).parameters())


@pytest.mark.parametrize("name", ["./no/such/folder", "a b c", "/dev/null"])
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, capsys, name):
    code, out, err = run(monkeypatch, capsys, "info", name)
    assert code == 2 and out == "" and err.startswith("edgewise: no model at") and err.count("\n") == 1


def test_damage_is_one_line_and_exit_code_2(monkeypatch, capsys, folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    code, _, err = run(monkeypatch, capsys, "info", str(folder))
    assert code == 2 and "truncated or damaged" in err and err.count("\n") == 1


def test_models_that_cannot_be_gated_are_refused_by_info(monkeypatch, capsys, tmp_path):
    small = {"vocab_size": 60, "hidden_size": 16}
    models = {
        "bloom": BloomForCausalLM(BloomConfig(**small, n_layer=1, n_head=2)),
        "mamba": MambaForCausalLM(MambaConfig(**small, state_size=4, num_hidden_layers=1)),
        "t5": T5ForConditionalGeneration(
            T5Config(vocab_size=60, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8)
        ),
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        code, _, err = run(monkeypatch, capsys, "info", str(tmp_path / name))
        assert code == 2 and err.startswith("edgewise: ") and err.count("\n") == 1, name


def test_wrong_words_exit_with_2(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "explode")[0] == 2
    assert run(monkeypatch, capsys, "info")[0] == 2
