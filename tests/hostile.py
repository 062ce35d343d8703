"""Damaged or absurd input, drawn from a seed: JSON with something wrong in it, files cut and overwritten, arguments."""

import copy
import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psutil

VALUES = [
    None, True, -1, 0, 1, 10**12, 10**400, -0.5, 1e308, float("nan"), float("inf"), "", "x", "0", "L0H0", "\0", "\ud800",
    "../x", "x" * 5000, [], [[]], [1, [2, [3]]], {}, {"a": {"b": None}}, [None], ["x", 1],
]  # fmt: skip
ARGUMENTS = [
    "", "-1", "0", "1", "1.5", "nan", "inf", "-inf", "1e308", "9" * 400, "9" * 5000, "1__", "1e9", "0x10", "x", "null",
    "None", "true", "L0H0", "L9999H9999", "5,5", "..", "/dev/null", "/proc/nothing/here", "~nobody/x", "a\nb", "é", "-",
    "2G", "64K", "0K", "1.5.2", " ", "'", '"', "%s", "{}", "[0]", "copy", "./x.jsonl", "x" * 5000,
]  # fmt: skip


class Hang(Exception):
    """A case took too long."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `Hang` in a block that takes longer."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Let a block reserve only so many bytes more, so that one that takes all memory fails instead of being killed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def change_config(folder: Path, **changes: Any) -> None:
    """Write other values into a model's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def damaged_json(content: Any, rng: Random) -> Any:
    """A copy in which one value, anywhere, is removed, replaced, repeated or renamed."""
    content = copy.deepcopy(content)
    places = list(_places(content))
    if not places:
        return rng.choice(VALUES)
    # as many cases near the root as deep in long lists
    depth = rng.choice(sorted({depth for depth, _, _ in places}))
    _, holder, key = rng.choice([place for place in places if place[0] == depth])
    action = rng.randrange(4)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[f"{key}_"] = holder.pop(key)
    elif action == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder[key] = rng.choice(VALUES)
    return content


def _places(content: Any, depth: int = 0) -> Iterator[tuple[int, Any, Any]]:
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in items:
        yield depth, content, key
        yield from _places(value, depth + 1)


def damage(path: Path, rng: Random) -> str:
    """Damage a file in one of many ways; returns in which."""
    text = path.read_bytes()
    way = rng.choice(
        ["json", "json", "json", "cut", "bytes", "nonsense", "empty", "pipe", "folder", "gone", "link"]
    )
    if way == "json" and path.suffix != ".json":
        way = "bytes"
    path.unlink()
    if way == "json":
        path.write_text(json.dumps(damaged_json(json.loads(text), rng)), errors="surrogatepass")
    elif way == "cut":
        path.write_bytes(text[: rng.randrange(len(text))])
    elif way == "bytes":
        changed = bytearray(text)
        for _ in range(rng.choice([1, 3, 50])):
            changed[min(rng.randrange(len(changed)), rng.randrange(1, len(changed)))] = rng.randrange(256)
        path.write_bytes(changed)
    elif way == "nonsense":
        path.write_bytes(
            rng.choice([b"null", b"[" * 50_000, b"\0" * 100, b'"x"', b"5", b"\xff\xfe", b'{"a": 1}', b"NaN"])
        )
    elif way == "empty":
        path.touch()
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    elif way == "link":
        path.symlink_to(rng.choice(["/dev/zero", path.name, "/etc", "nothing"]))
    return way
