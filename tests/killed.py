"""What a kill would leave behind: copies of a folder, one before each operation of Python on a file in it."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CHANGING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree"}
_watchers: list[Callable[[str, tuple], None]] = []


def _hook(event: str, arguments: tuple) -> None:
    if _watchers:
        _watchers[-1](event, arguments)


sys.addaudithook(_hook)  # cannot be removed; without a watcher it does nothing


@contextmanager
def copies_before_each_operation(folder: Path, into: Path) -> Iterator[list[Path]]:
    """Copy `folder` before each operation that changes a file in it, inside a `with` block."""
    copies: list[Path] = []

    def watch(event: str, arguments: tuple) -> None:
        if not _changes(event, arguments) or not _is_inside(folder, arguments):
            return
        _watchers.pop()  # copying is an operation on files too
        try:
            copy = into / f"{len(copies):03d}"
            shutil.copytree(folder, copy)
            copies.append(copy)
        finally:
            _watchers.append(watch)

    _watchers.append(watch)
    try:
        yield copies
    finally:
        _watchers.remove(watch)


def _changes(event: str, arguments: tuple) -> bool:
    if event == "open":
        flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
    return event in _CHANGING


def _is_inside(folder: Path, arguments: tuple[Any, ...]) -> bool:
    paths = [os.fsdecode(path) for path in arguments[:2] if isinstance(path, str | bytes | os.PathLike)]
    return any(Path(path).is_relative_to(folder) for path in paths)
