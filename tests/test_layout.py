"""The layout as CONTRIBUTING draws it: the packages, and the two paths through them; and files that are named exist."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from runs import CONTEXT, ROWS, command, save_host, save_text

import edgewise

ROOT = Path(__file__).parent.parent
PACKAGE = Path(edgewise.__file__).parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def files_on(path: str) -> list[str]:
    """The files of a path, in its order; in `maps/a.py, b.py` the second is in the folder of the first."""
    block = CONTRIBUTING.split(f"**{path}**")[1].split("\n\n")[1]
    files = []
    for line in block.splitlines():
        first, *others = re.findall(r"(?<![\w(])[\w/]+\.py", line.split("  (")[0])
        files += [first, *(f"{first.rpartition('/')[0]}/{other}" for other in others)]
    return files


@contextmanager
def recording_called_files() -> Iterator[set[str]]:
    """Files of the package whose functions are called inside a `with` block; class bodies do not count."""
    called: set[str] = set()

    def record(frame, event, argument) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & 1 and code.co_filename.startswith(str(PACKAGE)):
            called.add(Path(code.co_filename).relative_to(PACKAGE).as_posix())

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        yield called
    finally:
        sys.setprofile(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layout")
    save_host(folder / "gpt2")
    save_text(folder / "text.txt")
    return folder


def test_a_prompt_passes_the_files_that_contributing_names(folder, tmp_path):
    prompt = "The opposite of large is"
    with recording_called_files() as called:
        code, _, err = command(
            "maps", folder / "gpt2", "--prompt", prompt, "--heads", "L0H1", "--out", tmp_path
        )
    assert code == 0, err
    path = files_on("A prompt to a map")
    assert len(path) >= 12 and not set(path) - called


def test_a_step_passes_the_files_that_contributing_names(folder, tmp_path):
    sizes = ("--batch-size", ROWS, "--tokens", 2 * ROWS * CONTEXT, "--save-minutes", 0)
    with recording_called_files() as called:
        code, _, err = command(
            "sparsify", folder / "gpt2", "--data", folder / "text.txt", "--no-plot", "--out", tmp_path, *sizes
        )
    assert code == 0, err
    path = files_on("A step to a checkpoint")
    assert len(path) >= 12 and not set(path) - called


def test_every_package_is_in_the_layout_and_in_the_import_contract():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    block = CONTRIBUTING.split("## The layout")[1].split("\n\n")[2]
    drawn = [line.split()[0] for line in block.splitlines()]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [name for layer in contract["layers"] for name in layer.split(" | ")]
    assert set(layers) == set(drawn) == packages


def named_files() -> Iterator[tuple[str, str]]:
    """Files that source, tests and guides name in prose, with the file that names them."""
    tracked = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    tracked += [*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    for path in tracked:
        for name in re.findall(r"`([\w/-]+\.(?:py|ts))`|\b(docs/[\w/.-]+\.md)", path.read_text()):
            yield path.relative_to(ROOT).as_posix(), next(filter(None, name))


def test_files_that_are_named_exist():
    existing = [path.as_posix() for folder in ("src", "tests", "benchmarks", "docs", "report")
                for path in (ROOT / folder).rglob("*") if "node_modules" not in path.parts]  # fmt: skip
    lost = {(by, name) for by, name in named_files() if not any(f.endswith(f"/{name}") for f in existing)}
    assert not lost


def patched_names(source: str) -> list[str]:
    """What a test module replaces of the package: targets of setattr and of mock's patches that it imported from there."""
    tree, imported, patched = ast.parse(source), {"edgewise"}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "edgewise":
            imported |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and node.args
            and re.search(r"\b(setattr|patch|object)$", ast.unparse(node.func))
        ):
            target = ast.unparse(node.args[0]).strip("'\"")
            if target.split(".")[0] in imported:
                patched.append(ast.unparse(node))
    return patched


def test_patches_of_the_package_are_recognised():
    imports = "import edgewise\nfrom edgewise.core import threads\n"
    for call in ('m.setattr(threads, "_INTERVAL", 0)', 'm.setattr("edgewise.core.threads._INTERVAL", 0)',
                 'mock.patch.object(edgewise.core, "threads")'):  # fmt: skip
        assert len(patched_names(f"{imports}{call}")) == 1
    assert not patched_names(f'{imports}m.setattr(torch, "compile", None)')


@pytest.mark.parametrize("path", sorted((ROOT / "tests").glob("*.py")), ids=lambda path: path.stem)
def test_tests_pass_arguments_instead_of_patching_the_package(path):
    assert patched_names(path.read_text()) == []
