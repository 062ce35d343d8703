"""The command line: help, version, flags instead of argument names, one line and exit code 2 for bad input."""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tyro
from hosts import host
from runs import command
from transformers.models.bloom import BloomConfig, BloomForCausalLM
from transformers.models.mamba import MambaConfig, MambaForCausalLM
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

import edgewise
from edgewise.cli.flags import flags_of, name_flags
from edgewise.cli.main import COMMANDS


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
    assert all(name in out for name in COMMANDS) and out.endswith("False\n")


def test_info_of_a_dense_model(folder):
    code, out, _ = command("info", str(folder))
    assert code == 0
    for fact in (
        "LlamaForCausalLM",
        "3 layers x 4 heads on 2 key/value heads",
        "dense",
        "float32",
        "64 tokens",
        "MB",
    ):
        assert fact in out
    parameters = sum(p.numel() for p in host("llama").parameters())
    assert f"{parameters:,}" in out


def test_info_of_a_twin_as_json(tmp_path):
    edgewise.save(edgewise.gate(host("gpt2"), edgewise.GateConfig("relative", 2.5)), tmp_path)
    code, out, _ = command("info", str(tmp_path), "--json")
    described = json.loads(out)
    assert (
        code == 0
        and described["gate"] == {"kind": "relative", "b": 2.5, "sinks": True, "null_value": False}
        and described["heads"] == 4
    )
    assert described["parameters"] == sum(p.numel() for p in edgewise.load(tmp_path).parameters())


@pytest.mark.parametrize("name", ["./no/such/folder", "a b c", "/dev/null"])
def test_bad_input_is_one_line_and_exit_code_2(name):
    code, out, err = command("info", name)
    assert code == 2 and out == "" and err.startswith("edgewise: no model at") and err.count("\n") == 1


def test_damage_is_one_line_and_exit_code_2(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    code, _, err = command("info", str(folder))
    assert code == 2 and "truncated or damaged" in err and err.count("\n") == 1


def test_models_that_cannot_be_gated_are_refused_by_info(tmp_path):
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
        code, _, err = command("info", str(tmp_path / name))
        assert code == 2 and err.startswith("edgewise: ") and err.count("\n") == 1, name


def test_unknown_commands_and_missing_arguments_exit_with_2():
    assert command("explode")[0] == 2
    assert command("info")[0] == 2


def test_version():
    assert command("--version") == (0, f"edgewise {edgewise.__version__}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_starts_with_what_it_does_and_shows_examples(name):
    code, out, err = command(name, "--help")
    usage, summary, *_ = out.split("\n\n")
    assert code == 0 and err == "" and usage.startswith(f"usage: edgewise {name}")
    assert summary.replace("\n", " ") == str(COMMANDS[name].__doc__).splitlines()[0]
    assert f"\n\nExamples:\n  edgewise {name}" in out
    assert "None" not in out


def test_help_is_wrapped_where_the_terminal_ends_and_nowhere_else(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    out = command("circuit", "--help")[1]
    assert max(map(len, out.splitlines())) <= 100
    assert "split spreads each model over all GPUs and main memory. (default: auto)" in " ".join(out.split())
    assert "(default: runs/circuit)" in out


def test_flags_of_a_command_are_its_keywords_and_the_fields_of_its_config():
    flags = flags_of(COMMANDS["sparsify"])
    assert flags["batch_size"] == "--batch-size" and flags["data"] == "--data"
    assert "model" not in flags and "config" not in flags  # positional; no flag of its own


def test_arguments_are_shown_as_flags_where_the_command_has_them():
    flags = flags_of(COMMANDS["circuit"])
    shown = name_flags(
        "`ig_steps` or `edges=False` or `prompts=8`, not `batch_size` or `edgewise tasks`", flags
    )
    assert shown == "--ig-steps or --no-edges or --prompts 8, not `batch_size` or `edgewise tasks`"


def test_errors_of_the_library_name_arguments_and_those_of_the_command_line_flags():
    with pytest.raises(edgewise.EdgewiseError, match=r"^`context=4096` is longer"):
        edgewise.plan("pocket", edgewise.SparsifyConfig(context=4096))
    code, _, err = command("plan", "pocket", "--context", 4096)
    assert code == 2 and err.startswith("edgewise: --context 4096 is longer than")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_flag_in_groups_without_none_and_with_what_is_required(name):
    _, out, _ = command(name, "--help")
    flags = flags_of(COMMANDS[name]).values()
    assert all(f"  {flag}" in out or f"  --no-{flag[2:]}" in out for flag in flags)
    accepted = io.StringIO()
    with pytest.raises(SystemExit), contextlib.redirect_stdout(accepted):
        tyro.cli(COMMANDS[name], args=["--help"])
    assert set(re.findall(r"^  (--[a-z-]+)", out, re.MULTILINE)) <= set(
        re.findall(r"--[a-z-]+", accepted.getvalue())
    )
    assert ("None" not in out and "\narguments:\n" in out) or name == "demo"
    assert max(map(len, out.split("\n\n", 3)[3].splitlines())) <= 125


def test_help_begins_with_what_most_runs_need():
    _, out, _ = command("trace", "--help")
    sections = [out.index(f"\n{title}:\n") for title in ("arguments", "basics", "more", "figures")]
    assert sections == sorted(sections) and out.index("--prompt TEXT") < out.index("--node-threshold X")
    assert "(required)" in out and "--key POSITION" in out
    _, out, _ = command("compact", "--help")
    assert re.search(r"--out PATH .*\n?.*\(required\)", out)
    _, out, _ = command("--help")
    assert (
        out.index("the basics:") < out.index("  demo ") < out.index("before a run") < out.index("  features ")
    )
