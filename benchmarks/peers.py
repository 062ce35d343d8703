"""Asking another environment's Python: rivals live there, and each measurement gets a process of its own."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent


class PeerError(Exception):
    """A script failed; the message shows the end of what it said."""


def ask(python: str, script: str, *arguments: str) -> dict[str, Any]:
    """What one of the scripts beside this file prints as its last line, which is JSON."""
    # edgewise itself comes from its sources, so that a rival's environment needs none of its dependencies' pins
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "HF_HUB_OFFLINE": "1"}
    command = [python, str(HERE / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"{script} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def version(python: str, package: str) -> str | None:
    """Of a package in that environment, or None if it, or the environment, is missing."""
    question = f"from importlib.metadata import version; print(version({package!r}))"
    try:
        done = subprocess.run([python, "-c", question], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


class Rival(NamedTuple):
    """A library that does part of what edgewise does."""

    name: str
    package: str
    module: str
    """What it is called in the names of scripts, and in their arguments."""


RIVALS = (
    Rival("TransformerLens", "transformer-lens", "transformer_lens"),
    Rival("nnsight", "nnsight", "nnsight"),
)


class Environment:
    """The rivals' Python, and which of them are there."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.versions = {rival: version(python, rival.package) for rival in RIVALS}

    def name(self, rival: Rival) -> str:
        return f"{rival.name} {self.versions[rival] or ''}".rstrip()

    def ask(self, rival: Rival, script: str, argument: str) -> dict[str, Any] | str:
        """What it found, or why there is nothing."""
        if self.versions[rival] is None:
            return "not installed"
        say(f"{self.name(rival)}: {script}")
        try:
            return ask(self.python, script, argument)
        except PeerError as error:
            say(str(error))
            return "failed"


def say(what: str) -> None:
    """Some of it takes minutes: what runs, and since when."""
    print(time.strftime("%H:%M:%S"), what, flush=True)
