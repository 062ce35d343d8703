"""The workflows of GitHub, which cannot run here: pinned, with the least rights, and calling what exists."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def jobs() -> list[tuple[str, dict]]:
    read = ((path, yaml.safe_load(path.read_text())) for path in WORKFLOWS)
    return [(f"{path.stem}: {name}", job) for path, content in read for name, job in content["jobs"].items()]


def test_actions_are_pinned_to_commits_with_their_versions_beside_them():
    for path in WORKFLOWS:
        for line in path.read_text().splitlines():
            if "uses:" in line:
                assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_no_rights_but_those_of_their_jobs(path):
    content = yaml.safe_load(path.read_text())
    assert content["permissions"] == {}
    for job in content["jobs"].values():
        assert "permissions" in job
        assert "secrets." not in str(job)
        assert all(step.get("with", {}).get("persist-credentials") is False
                   for step in job["steps"] if "checkout" in step.get("uses", ""))  # fmt: skip


def test_what_they_call_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, job in jobs():
        commands = "\n".join(step.get("run", "") for step in job["steps"])
        assert set(re.findall(r"^make ([\w-]+)", commands, re.MULTILINE)) <= targets, name
        for file in re.findall(r"(?:tests|docs)/[\w./-]+", commands):
            assert (ROOT / file).exists(), (name, file)


def test_the_supported_pythons_and_systems_are_tested():
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["tests"]["strategy"][
        "matrix"
    ]
    supported = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert matrix["python"] == supported
    assert {entry["os"] for entry in matrix["include"]} == {"macos-latest", "windows-latest"}
