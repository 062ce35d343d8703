"""Snapshots of a run: complete or absent.

A snapshot is written under a temporary name, with a list of checksums, and renamed when all of it is on the disk. The two
newest are kept. So whatever happens while one is written (a kill, a full disk, a power cut), the one before is intact.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from edgewise.core.errors import EdgewiseError, first_line

if TYPE_CHECKING:
    from accelerate import Accelerator

FOLDER = "snapshots"
"""Where a run's snapshots are, in its `out`."""
_CHECKSUMS, _STATE = "files.json", "state.json"
_KEPT = 2


class HasOut(Protocol):
    @property
    def out(self) -> Path: ...


class Snapshot(NamedTuple):
    folder: Path
    content: dict[str, Any]
    """What the run's `state_dict` returned."""


def name(step: int) -> str:
    """The name of a step's snapshot."""
    return f"step-{step:09d}"


def snapshots(folder: Path) -> list[Path]:
    """All snapshots in a folder, newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


def write(accelerator: "Accelerator", folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Write `content` and the state of all that the accelerator has prepared (weights, optimizer), atomically."""
    writing, final = folder / ".writing", folder / name(step)
    try:
        if accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir()
        accelerator.wait_for_everyone()
        accelerator.save_state(str(writing))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            _seal(writing, content)
            _publish(writing, final)
    except Exception as error:  # each library that writes has its own way to say that the disk is full
        explanation = explain_write_error(error, folder)
        shutil.rmtree(writing, ignore_errors=True)
        raise explanation from error
    accelerator.wait_for_everyone()
    return final


def _seal(writing: Path, content: dict[str, Any]) -> None:
    """Write the state and the checksums of all files, and flush them to the disk."""
    (writing / _STATE).write_text(json.dumps(content))
    sums = {str(file.relative_to(writing)): _checksum(file) for file in _files(writing)}
    (writing / _CHECKSUMS).write_text(json.dumps(sums))
    for file in _files(writing):
        with file.open("rb") as open_file:
            os.fsync(open_file.fileno())


def _publish(writing: Path, final: Path) -> None:
    """Give a sealed snapshot its name, in one move, and delete all but the two newest."""
    folder = writing.parent
    for path in snapshots(folder):
        if path >= final:  # a damaged one, or the run would have gone on from there
            shutil.rmtree(path, ignore_errors=True)
    writing.rename(final)
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    for old in snapshots(folder)[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def newest_intact(folder: Path, warn: Callable[[str], None]) -> Snapshot:
    """The newest snapshot whose files match their checksums; `warn` is called with a line for each damaged one."""
    for candidate in snapshots(folder):
        damage = _damage(candidate)
        if damage is None:
            return Snapshot(candidate, json.loads((candidate / _STATE).read_text()))
        warn(f"snapshot {candidate.name} is damaged ({damage}); trying the one before")
    raise EdgewiseError(
        f"{folder.parent} holds no intact snapshot to resume from; start again in another `out`"
    )


def explain_write_error(error: BaseException, folder: Path, what: str = "the snapshot") -> EdgewiseError:
    """An error that says in one line why something could not be written, and how to go on."""
    full = shutil.disk_usage(folder).free < 1 << 20 if folder.exists() else False
    cause = "the disk is full" if full or "No space left" in str(error) else first_line(error)
    saved = snapshots(folder)
    advice = (
        f"; {saved[0].name} is intact: when there is room, go on from it with `resume=True`" if saved else ""
    )
    return EdgewiseError(f"{what} could not be written: {cause}{advice}")


@contextmanager
def explained(folder: Path, what: str) -> Iterator[None]:
    """Turn an error inside a `with` block into one line about what could not be written."""
    try:
        yield
    except EdgewiseError:
        raise
    except Exception as error:  # each library that writes has its own way to say that the disk is full
        raise explain_write_error(error, folder, what) from error


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _checksum(file: Path) -> str:
    with file.open("rb") as open_file:
        return hashlib.file_digest(open_file, "blake2b").hexdigest()


def _damage(candidate: Path) -> str | None:
    try:
        if not (candidate / _CHECKSUMS).is_file():
            return f"{_CHECKSUMS} is missing"
        listed = json.loads((candidate / _CHECKSUMS).read_text())
        for file, checksum in {_STATE: None, **listed}.items():
            if not (candidate / file).is_file():
                return f"{file} is missing"
            if _checksum(candidate / file) != checksum:
                return f"{file} has changed"
    except (OSError, ValueError, TypeError) as error:
        return first_line(error)
    return None
