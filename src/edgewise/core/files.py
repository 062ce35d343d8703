"""Files that are complete or absent, and folders that one process writes at a time."""

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from edgewise.core.errors import EdgewiseError, first_line

if TYPE_CHECKING:
    import numpy as np

try:
    import fcntl
except ImportError:  # Windows: folders are not locked
    fcntl = None

_PIPE_SECONDS = 5.0
_Identity = tuple[int, int]
"""Device and inode of a folder."""
_locked: ContextVar[frozenset[_Identity]] = ContextVar("locked", default=frozenset())
"""Folders that the calling code has locked already, further up."""


def write_atomically(
    path: str | Path, write: Callable[[Path], object], pipe_seconds: float = _PIPE_SECONDS
) -> None:
    """Have `write` fill a file beside `path`, under a hidden name, and rename it once it is on the disk.

    Whatever happens meanwhile, `path` is what it was before or what it is to be. What is not a regular file, such as a
    device or a pipe, is written to directly: renaming would replace it. So is /dev/stdout where output goes to a file. A
    pipe that nobody has opened to read within `pipe_seconds` is refused.
    """
    given, path = Path(path), _resolved(Path(path))
    try:
        if (descriptor := _descriptor_of(path)) is not None:
            _write_into(descriptor, write)
            return
        if given.exists() and not given.is_file():
            with _reader_of(given, pipe_seconds):
                write(given)  # a pipe behind /dev/stdout has no other name
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".writing-{path.name}")
        try:
            write(partial)
            flush(partial)
            partial.replace(path)
            flush(path.parent)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    except Exception as error:  # safetensors has its own, which it raises for a full disk too
        if type(error).__name__ != "SafetensorError":
            raise
        raise _unwritable(path, error) from error


@contextmanager
def _reader_of(path: Path, seconds: float) -> Iterator[None]:
    """Refuse a pipe that nobody has opened to read within `seconds`: opening it to write would wait for ever."""
    if not path.is_fifo():
        yield
        return
    give_up = time.monotonic() + seconds
    while True:
        try:
            writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > give_up:
                raise EdgewiseError(f"{path} is a pipe that nobody reads") from error
            time.sleep(0.05)
    try:
        yield
    finally:
        os.close(writer)


def _descriptor_of(path: Path) -> int | None:
    """The descriptor, 1 or 2, of a regular file to which this process's output goes; None for any other."""
    if not path.is_file():
        return None
    for descriptor in (1, 2):
        try:
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except OSError:  # closed
            continue
    return None


def _write_into(descriptor: int, write: Callable[[Path], object]) -> None:
    """Write where output goes on, after what has been printed."""
    with TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        write(result)
        sys.stdout.flush()
        with open(descriptor, "wb", closefd=False) as file:
            file.write(result.read_bytes())


def exists(path: str | Path) -> bool:
    """Whether there is such a file or folder. A path that no file system takes, too long or with a null byte, is refused."""
    try:
        return Path(path).exists()
    except (OSError, ValueError) as error:
        raise _unwritable(Path(path), error) from error


def is_folder(path: str | Path) -> bool:
    """Whether there is such a folder; also of a path that no file system takes."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def _resolved(path: Path) -> Path:
    """Where links lead to; refuses folders and paths that no file system takes."""
    try:
        resolved = path.resolve()
        is_folder = resolved.is_dir()
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # ValueError: a null byte; RuntimeError: a loop of links
        raise _unwritable(path, error) from error
    if is_folder:
        raise EdgewiseError(f"{path} is a folder; give a file")
    return resolved


def _unwritable(path: Path, error: Exception) -> EdgewiseError:
    reason = getattr(error, "strerror", None) or first_line(error)
    return EdgewiseError(f"{str(path)[:200]} cannot be written: {reason}")


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file atomically; returns its path."""
    write_atomically(path, lambda new: new.write_text(text, encoding="utf-8", newline="\n"))
    return Path(path)


def write_json(path: str | Path, content: Any, indent: int | None = 1) -> Path:
    """Write a JSON file atomically; returns its path."""
    separators = (",", ":") if indent is None else None
    return write_text(path, json.dumps(content, indent=indent, separators=separators) + "\n")


def write_arrays(path: str | Path, arrays: dict[str, "np.ndarray"]) -> Path:
    """Write a safetensors file atomically; returns its path."""
    from safetensors.numpy import save_file  # imports numpy: `edgewise --help` need not wait for it

    write_atomically(path, lambda new: save_file(arrays, new))
    return Path(path)


def flush(path: Path) -> None:
    """Wait until a file, or the list of a folder's files, is on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows does not open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def output_folder(out: str | Path | None) -> AbstractContextManager[object]:
    """A lock on the folder of an analysis's results, taken before anything is computed; nothing without a folder."""
    return nullcontext() if out is None else folder_lock(out)


@contextmanager
def folder_lock(folder: str | Path) -> Iterator[Path]:
    """Make a folder if it is missing, and keep other processes from writing to it inside a `with` block.

    Whoever comes second is refused. The operating system releases the lock when the process ends, in whatever way. A block
    inside another one on the same folder is free to write.
    """
    folder = Path(folder)
    is_new = not exists(folder)
    if fcntl is None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    descriptor = _lock(folder)
    status = os.fstat(descriptor)
    token = _locked.set(_locked.get() | {(status.st_dev, status.st_ino)})
    try:
        yield folder
    finally:
        _locked.reset(token)
        if is_new:
            _remove_if_empty(folder)
        os.close(descriptor)


def _lock(folder: Path) -> int:
    """A descriptor of the folder, with a lock that ends when it is closed."""
    assert fcntl is not None
    if exists(folder) and not is_folder(folder):
        raise EdgewiseError(f"{folder} is a file; give a folder")
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
        except (OSError, ValueError) as error:  # ValueError: a null byte
            raise _unwritable(folder, error) from error
        if not os.access(folder, os.W_OK | os.X_OK):
            os.close(descriptor)
            raise EdgewiseError(f"{folder} cannot be written: permission denied")
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) in _locked.get():
            return descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise EdgewiseError(
                f"another process is writing to {folder}; wait for it, or give another folder"
            ) from None
        except OSError:  # a file system without locks
            return descriptor
        if folder.exists() and os.path.samestat(status, folder.stat()):
            return descriptor
        os.close(descriptor)  # whoever had made it has removed it meanwhile: once more


def _remove_if_empty(folder: Path) -> None:
    """Leave no empty folder behind where nothing came to be written."""
    try:
        folder.rmdir()
    except OSError:
        return
