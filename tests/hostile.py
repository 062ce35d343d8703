"""Damaged or absurd input, drawn from a seed: JSON with something wrong in it, files cut and overwritten, arguments; and a
process of their own for cases that could end the one they run in."""

import copy
import faulthandler
import functools
import json
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
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


MEMORY = 4 << 30
"""Bytes that the cases of a test may reserve in a `Sandbox`."""
SANDBOX_SECONDS = 600
"""Of all cases of one test: a case that blocks native code does not hear the alarm of `time_limit`."""
_inside: Path | None = None
"""Where this process writes the case that it works on, if it is a sandbox."""
_sandbox: "Sandbox | None" = None


class Sandbox:
    """A process with little memory. What ends it, such as native code or the kernel, fails a test, not pytest's worker."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hostile-")
        self._case, self._fatal = (Path(self._folder.name) / name for name in ("case", "fatal"))
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._case, self._fatal, memory), daemon=True
        )
        self._process.start()
        theirs.close()

    def run(
        self, call: Callable[..., Any], *args: Any, seconds: float = SANDBOX_SECONDS, **kwargs: Any
    ) -> None:
        """Call a function of a module there; fails if it raises, ends the process or takes too long."""
        self._pipe.send((call, args, kwargs))
        try:
            if self._pipe.poll(seconds):
                if failure := self._pipe.recv():
                    raise AssertionError(failure)
                return
            ending = f"did not answer in {seconds:g} seconds"
        except (EOFError, ConnectionResetError):
            self._process.join()
            ending = f"ended with exit code {self._process.exitcode}"
        case, fatal = self._read(self._case), self._read(self._fatal)
        self.close()
        raise AssertionError(f"the sandbox {ending}; its last case: {case}\n{fatal}")

    @staticmethod
    def _read(path: Path) -> str:
        return path.read_text(errors="replace") if path.is_file() else ""

    @property
    def is_open(self) -> bool:
        return self._process.is_alive()

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._folder.cleanup()


def _serve(pipe: Connection, case: Path, fatal: Path, memory: int) -> None:
    """What a sandbox does: work on calls until it is killed."""
    global _inside
    _inside = case
    with fatal.open("w") as stacks:
        faulthandler.enable(stacks)  # of a signal that ends this process
        while True:
            call, args, kwargs = pipe.recv()  # imports their modules: not what is limited
            try:
                with memory_limit(memory):
                    call(*args, **kwargs)
                pipe.send(None)
            except BaseException:  # of any kind: the test fails by it
                pipe.send(traceback.format_exc().encode(errors="backslashreplace").decode())


def sandboxed(test: Callable[..., None]) -> Callable[..., None]:
    """A test whose cases run in a `Sandbox`, which tests share; its arguments are pickled."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        global _sandbox
        if _inside:
            test(*args, **kwargs)
            return
        if _sandbox is None or not _sandbox.is_open:
            _sandbox = Sandbox()
        _sandbox.run(run, *args, **kwargs)

    return run


def begin_case(case: str) -> None:
    """Note the case that is worked on, for the message of a test whose sandbox it ends."""
    if _inside:
        _inside.write_text(case, errors="backslashreplace")


def end_process(how: str) -> None:
    """End or block this process, as native code does."""
    begin_case(how)
    if how == "segfault":
        faulthandler._sigsegv()  # pyright: ignore
    elif how == "abort":
        os.abort()
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "blocked":
        time.sleep(60)
    else:
        bytearray(2**40)


def close_sandbox() -> None:
    """End the sandbox that tests shared."""
    global _sandbox
    if _sandbox is not None:
        _sandbox.close()
        _sandbox = None


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
