"""What a newcomer meets: the README's example runs, the demo writes its summary, a wheel carries the models."""

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python(code: str, cwd: Path, **environment: str) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_in_the_readme_exists():
    from edgewise.cli.main import COMMANDS

    named = set(re.findall(r"^edgewise (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named and named <= COMMANDS.keys()


@pytest.mark.slow
def test_the_demo_writes_its_summary(tmp_path):
    from edgewise.cli.demo_stages import run

    run(tmp_path, minutes=0.05, prompts=4)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {row["task"] for row in summary["prompts"]} == {
        "copy",
        "ioi",
        "greater-than",
        "docstring",
        "relations",
    }
    assert all(row["probability"] > 0.8 for row in summary["prompts"])
    assert summary["sums"] == {"53+21": "00074", "36+28": "00064", "43+59": "00102"}
    densities = [row["density"] for row in summary["untrained"]]
    assert densities == sorted(densities, reverse=True) and 0 < densities[-1] < densities[0] < 1
    assert 0 < summary["sparse"]["density"] < 1 and (tmp_path / "pocket-sparse/run.png").is_file()
    assert summary["trace"]["dense"]["heads_at_80"] > summary["trace"]["sparse"]["heads_at_80"]
    assert (tmp_path / "report.html").is_file()
    assert len(summary["figures"]) == 7 and (tmp_path / "figures/attention-maps.svg").is_file()
    assert (
        summary["circuits"].keys() == {"copy", "ioi"} and (tmp_path / "circuits/ioi/circuit.json").is_file()
    )


def test_a_wheel_carries_the_models(tmp_path, monkeypatch):
    build = pytest.importorskip("hatchling.build", reason="hatchling is needed to build a wheel")
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / build.build_wheel(str(tmp_path))
    assert wheel.stat().st_size < 20e6
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        "import edgewise; from edgewise.models.registry import embedded_models; print(edgewise.__file__)\n"
        "for name in embedded_models(): edgewise.load(name); edgewise.load_tokenizer(name); print(name)"
    )
    assert python(code, tmp_path, PYTHONPATH=str(tmp_path / "installed")).startswith(
        str(tmp_path / "installed")
    )


def test_optional_and_test_packages_are_not_needed_to_import(tmp_path):
    hidden = "['hypothesis', 'pytest', 'peft', 'wandb', 'tensorboard', 'trackio']"
    modules = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src/edgewise").rglob("*.py")
        if path.name != "__main__.py"
    ]
    code = (
        f"import sys, importlib\nfor name in {hidden}: sys.modules[name] = None\n"
        f"for name in {modules}: importlib.import_module(name)"
    )
    python(code, tmp_path)


def test_no_public_name_is_also_a_module():
    """Importing such a module would put itself in the place of the function."""
    from edgewise import _HOME

    modules = {path.stem for path in (ROOT / "src/edgewise").iterdir()}
    assert not modules & _HOME.keys()


def test_type_checkers_and_python_import_the_same_public_names():
    from edgewise import _HOME

    tree = ast.parse((ROOT / "src/edgewise/__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {node.names[0].name: node.module for node in imports} == {
        name: f"edgewise.{module}" for name, module in _HOME.items()
    }
