"""log.jsonl: a line for a step, a line for a validation."""

import json
import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from edgewise.core.files import write_text
from edgewise.training import snapshot
from edgewise.training.callbacks import Callback

if TYPE_CHECKING:
    from edgewise.training.trainer import Trainer

LINES = 1000
"""Steps that are logged in a run of more."""


class Log(Callback):
    """Written by the main process. Lines of steps that a resumed run will do again are cut off first."""

    def __init__(self, path: Path):
        self._path, self._file = path, None

    def on_begin(self, trainer: "Trainer") -> None:
        if trainer.run.accelerator.is_main_process:
            with self._explained():
                self._file = open_at_step(self._path, trainer.state.step)

    def on_step_end(self, trainer: "Trainer", metrics: Any) -> None:
        if trainer.state.step % max(1, trainer.state.planned_steps // LINES) == 0:
            self._write(trainer, trainer.run.logged(metrics))

    def on_validation(self, trainer: "Trainer", values: dict[str, Any]) -> None:
        self._write(trainer, values)

    def on_end(self, trainer: "Trainer") -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, trainer: "Trainer", values: dict[str, Any]) -> None:
        if self._file is None:
            return
        state = trainer.state
        line = {
            "step": state.step,
            "planned_steps": state.planned_steps,
            "tokens": state.tokens,
            "seconds": round(state.seconds, 2),
            **values,
        }
        with self._explained():
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def _explained(self) -> AbstractContextManager[None]:
        return snapshot.explained(self._path.parent / snapshot.FOLDER, self._path.name)


def open_at_step(path: Path, step: int) -> TextIO:
    """Open a log to go on after a step; what was logged later is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text(errors="replace").splitlines() if step and path.is_file() else []
    write_text(path, "".join(line + "\n" for line in lines if _step_of(line) <= step))
    return path.open("a")


def _step_of(line: str) -> float:
    """The step of a line; infinite if it is none: the last one of a killed run, or one that was edited."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return math.inf
    return step if isinstance(step, int) else math.inf
