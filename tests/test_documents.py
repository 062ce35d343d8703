"""What the documents show was run: links lead somewhere, commands and flags exist, Python examples run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from runs import command

ROOT = Path(__file__).parent.parent
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [*GUIDES, *sorted((ROOT / "docs/research").glob("*.md"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(document):
    for link in re.findall(r"\]\(([^)#\s]*(?:#[^)\s]*)?)\)", document.read_text()):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def shell_commands(document: Path) -> list[list[str]]:
    """The arguments of every `edgewise ...` line in a code block."""
    blocks = re.findall(r"```(?:\w*)\n(.*?)```", document.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    shown = [re.sub(r"^.*?-m edgewise", "edgewise", line.strip()) for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in shown if line.startswith("edgewise ")]


@pytest.fixture(scope="module")
def help_of():
    texts: dict[str, str] = {}

    def get(name: str) -> str:
        if name not in texts:
            code, out, _ = command(name, "--help")
            assert code == 0, name
            texts[name] = out
        return texts[name]

    return get


@pytest.mark.parametrize("document", GUIDES, ids=name_of)
def test_every_command_and_flag_exists(document, help_of):
    for name, *arguments in shell_commands(document):
        flags = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        unknown = [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", help_of(name))]
        assert not unknown, (name, unknown)


@pytest.mark.slow
@pytest.mark.parametrize("document", GUIDES, ids=name_of)
def test_python_examples_run(document, tmp_path):
    """Examples on the embedded models, one document after another in one namespace; others only have to compile."""
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    blocks = [block for block in blocks if not block.startswith(">>>") and "edgewise." in block]
    if document.name == "reference.md" or not blocks:
        pytest.skip("no examples")
    code = "\n".join(["import edgewise", *blocks])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if document.name == "README.md":
        assert (tmp_path / "runs/pocket/report.html").is_file()


def test_the_readme_is_read_in_two_minutes():
    assert len((ROOT / "README.md").read_text().split()) <= 700


def test_the_reference_is_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/build_reference.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
