"""What a newcomer meets: the README's example runs, the demo writes its summary, a wheel carries the models."""

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from notebooks import notebook_code

import edgewise

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
    assert 0 < summary["sparse"]["density"] < 1 and (tmp_path / "short-run/run.png").is_file()
    assert summary["trace"]["dense"]["heads_at_80"] > summary["trace"]["sparse"]["heads_at_80"]
    assert (tmp_path / "report.html").is_file()
    assert len(summary["figures"]) == 7 and (tmp_path / "figures/attention-maps.svg").is_file()
    assert (
        summary["circuits"].keys() == {"copy", "ioi"} and (tmp_path / "circuits/ioi/circuit.json").is_file()
    )


@pytest.mark.slow
def test_a_wheel_carries_the_models(tmp_path, monkeypatch):
    build = pytest.importorskip("hatchling.build", reason="hatchling is needed to build a wheel")
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / build.build_wheel(str(tmp_path))
    assert wheel.stat().st_size < 20e6
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        "import edgewise; from edgewise.models.registry import embedded_models; print(edgewise.__file__)\n"
        "for name, model in embedded_models().items():\n"
        "    if model.make_folder is None: edgewise.load(name); edgewise.load_tokenizer(name); print(name)"
    )
    assert python(code, tmp_path, PYTHONPATH=str(tmp_path / "installed")).startswith(
        str(tmp_path / "installed")
    )


@pytest.fixture(scope="module")
def distribution(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist."""
    build = pytest.importorskip("hatchling.build", reason="hatchling is needed to build a wheel")
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        build.build_wheel(str(folder))
        build.build_sdist(str(folder))
    return folder


def test_the_version_is_said_in_one_place(distribution):
    (wheel,) = distribution.glob("*.whl")
    assert wheel.name.startswith(f"edgewise-{edgewise.__version__}-")
    assert f"version: {edgewise.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert 'dynamic = ["version", ' in (ROOT / "pyproject.toml").read_text()


def test_the_wheel_is_typed_and_the_sdist_has_what_tests_need(distribution):
    (wheel,), (sdist,) = distribution.glob("*.whl"), distribution.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        points = archive.read(entry_points).decode()
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    installed = {name.removeprefix("edgewise/") for name in names if name.startswith("edgewise/")}
    source = ROOT / "src/edgewise"
    assert installed == {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.is_relative_to(source / "smollm2/twin")
    }
    assert {"reporting/assets/app.js", "pocket/weights/pocket-sparse/twin.safetensors"} <= installed
    assert all(name.startswith(("edgewise/", "edgewise-")) for name in names) and max(sizes.values()) < 6e6
    assert "edgewise/py.typed" in names and not any(name.startswith("tests") for name in names)
    assert {"LICENSE", "report/LICENSE-d3"} <= {name.partition(".dist-info/licenses/")[2] for name in names}
    assert "[lm_eval.models]" in points and "[edgewise.models]" in points
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "src/edgewise/py.typed",
        "tests/hosts.py",
        "docs/build_reference.py",
        "README.md",
        "LICENSE",
        "CONTRIBUTING.md",
        "Makefile",
        "hatch_build.py",
        ".github/workflows/ci.yml",
    ):
        assert needed in inside, needed
    assert not any("node_modules" in name or ".venv" in name for name in inside)


@pytest.mark.parametrize("repository", [None, "https://github.com/someone/edgewise"])
def test_the_page_on_pypi_has_no_relative_links(repository, tmp_path, monkeypatch):
    """A release knows its repository; its links lead to files that are there, at the tag of the version."""
    build = pytest.importorskip("hatchling.build", reason="hatchling is needed to build a wheel")
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("EDGEWISE_REPOSITORY", raising=False)
    if repository:
        monkeypatch.setenv("EDGEWISE_REPOSITORY", repository)
    folder = tmp_path / build.prepare_metadata_for_build_wheel(str(tmp_path))
    metadata = Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
    text = metadata.get_payload()
    assert isinstance(text, str) and metadata["Description-Content-Type"] == "text/markdown"
    if repository is None:
        assert text.strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
        assert "Project-URL" not in metadata
        return
    assert f"Repository, {repository}" in metadata.get_all("Project-URL", [])
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", text)
    assert len(links) > 10 and all(link.startswith("https://") for _, link in links)
    for picture, link in links:
        if link.startswith(repository):
            kind, tag, path = link.removeprefix(f"{repository}/").split("/", 2)
            assert (kind, tag) == ("raw" if picture else "blob", f"v{edgewise.__version__}")
            assert (ROOT / path.partition("#")[0]).exists(), link


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment_runs_the_demo_and_the_first_notebook(distribution, tmp_path):
    """An environment with nothing but the wheel; its dependencies are found in the one that runs the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (site_packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (wheel,) = distribution.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages / "dependencies.pth").write_text("\n".join(shared))
    notebook = ROOT / "docs/notebooks/dense-against-sparse.ipynb"
    code = (
        "import edgewise, sys; assert edgewise.__file__.startswith(sys.prefix), edgewise.__file__\n"
        "from edgewise.cli.demo_stages import run; from pathlib import Path; run(Path('demo'), 0.02, prompts=4)\n"
        + notebook_code(notebook)
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg", "PYTHONPATH": ""}
    interpreter = tmp_path / "env/bin/python"
    done = subprocess.run(
        [interpreter, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "demo/report.html").is_file() and (tmp_path / "runs/notebook/report.html").is_file()


def test_datasets_is_imported_only_where_a_text_is_read():
    """It takes 260 MB and seconds: no analysis of a model waits for it."""
    for path in (ROOT / "src/edgewise").rglob("*.py"):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [
                alias.name for alias in getattr(statement, "names", []) if isinstance(statement, ast.Import)
            ]
            assert "datasets" not in names and getattr(statement, "module", None) != "datasets", path


def test_optional_and_test_packages_are_not_needed_to_import(tmp_path):
    """All modules import with the required packages alone; the one that lm-evaluation-harness imports needs the harness."""
    hidden = "['hypothesis', 'pytest', 'peft', 'lm_eval', 'gguf', 'wandb', 'tensorboard', 'trackio']"
    modules = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src/edgewise").rglob("*.py")
        if path.name not in ("__main__.py", "lm_eval_model.py")
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
