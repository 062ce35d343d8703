"""What the searches for heads, edges and token edges of one model share."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.replay import Replay
from edgewise.core.console import Display

Progress = Callable[[int], Any]
"""Called with the number of patched prompts, or prompts, that are finished."""


class Search(NamedTuple):
    """One model's recorded runs, what to find in them, and where progress is shown."""

    name: str
    replay: Replay
    config: CircuitConfig
    display: Display

    def bar(self, text: str, total: int) -> AbstractContextManager[Progress]:
        return self.display.bar(f"{self.name}: {text}", total)

    def status(self, text: str) -> AbstractContextManager[Any]:
        return self.display.status(f"{self.name}: {text}")
