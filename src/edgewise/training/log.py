"""log.jsonl: one line for a step, one for a look at held-out text."""

import json
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from edgewise.training import snapshot


class Logged(Protocol):
    """A training, as its log sees it."""

    step_number: int
    seconds: float

    @property
    def tokens(self) -> int: ...


class Log:
    """Written by one process. What a resumed run will do again is cut off first."""

    def __init__(self, path: Path, step: int, is_main: bool):
        self.file = None
        self.explained = partial(snapshot.explained, path.parent / "snapshots", path.name)
        if not is_main:
            return
        kept = []
        with self.explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            if step and path.is_file():
                for line in path.read_text().splitlines():
                    try:
                        if json.loads(line)["step"] <= step:
                            kept.append(line + "\n")
                    except ValueError:  # the last line of a killed run
                        continue
            path.write_text("".join(kept))
            self.file = path.open("a")

    def write(self, run: Logged, **values: Any) -> None:
        if self.file is None:
            return
        line = {"step": run.step_number, "tokens": run.tokens, "seconds": round(run.seconds, 2), **values}
        with self.explained():
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.file is not None:
            self.file.close()
