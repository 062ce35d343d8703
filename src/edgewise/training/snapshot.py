"""Snapshots of a run: whole or not there at all.

A snapshot is written beside the others under a name that does not count, is read back against its list of checksums, and
only then gets its own name. The two newest are kept. So whatever happens while one is written (a kill, a full disk, a power
cut), the one before is still whole.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.core.errors import EdgewiseError, first_line

if TYPE_CHECKING:
    from accelerate import Accelerator

_LIST, _POSITION = "files.json", "position.json"
_KEPT = 2


def name(step: int) -> str:
    return f"step-{step:09d}"


def snapshots(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


def write(accelerator: "Accelerator", folder: Path, step: int, position: dict[str, Any]) -> Path:
    """Write the whole state of all that an accelerator has prepared, atomically."""
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
            seal(writing, position)
            publish(writing, final)
    except Exception as error:  # each library that writes has its own way to say that the disk is full
        told = explain_write_error(error, folder)
        shutil.rmtree(writing, ignore_errors=True)
        raise told from error
    accelerator.wait_for_everyone()
    return final


def seal(writing: Path, position: dict[str, Any]) -> None:
    """Note what belongs to a snapshot, and force it to the disk."""
    (writing / _POSITION).write_text(json.dumps(position))
    sums = {str(file.relative_to(writing)): _checksum(file) for file in _files(writing)}
    (writing / _LIST).write_text(json.dumps(sums))
    for file in _files(writing):
        with file.open("rb") as open_file:
            os.fsync(open_file.fileno())


def publish(writing: Path, final: Path) -> None:
    """Give a sealed snapshot its name, in one move, and drop what is older than the two newest."""
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


def newest_whole(folder: Path, say: Callable[[str], None]) -> tuple[Path, dict[str, Any]]:
    """The newest snapshot whose files are what was written, and the position it holds."""
    for candidate in snapshots(folder):
        damage = _damage(candidate)
        if damage is None:
            return candidate, json.loads((candidate / _POSITION).read_text())
        say(f"snapshot {candidate.name} is damaged ({damage}); trying the one before")
    raise EdgewiseError(
        f"{folder.parent} holds no whole snapshot to resume from; start again in another --out"
    )


def explain_write_error(error: BaseException, folder: Path, what: str = "the snapshot") -> EdgewiseError:
    """What to tell when something could not be written."""
    full = shutil.disk_usage(folder).free < 1 << 20 if folder.exists() else False
    cause = "the disk is full" if full or "No space left" in str(error) else first_line(error)
    left = snapshots(folder)
    way = f"; {left[0].name} is whole: when there is room, go on from it with --resume" if left else ""
    return EdgewiseError(f"{what} could not be written: {cause}{way}")


@contextmanager
def explained(folder: Path, what: str) -> Iterator[None]:
    """Say in one line what could not be written."""
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
        if not (candidate / _LIST).is_file():
            return f"{_LIST} is missing"
        listed = json.loads((candidate / _LIST).read_text())
        for file, checksum in {_POSITION: None, **listed}.items():
            if not (candidate / file).is_file():
                return f"{file} is missing"
            if _checksum(candidate / file) != checksum:
                return f"{file} has changed"
    except (OSError, ValueError, TypeError) as error:
        return first_line(error)
    return None
