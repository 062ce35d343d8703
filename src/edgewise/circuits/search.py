"""What the searches for heads, edges and token edges of one model share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.joint_search import Report
from edgewise.circuits.replay import Replay
from edgewise.core.console import Display
from edgewise.tasks.pairs import Split
from edgewise.tasks.roles import Roles

Progress = Callable[[int], Any]
"""Called with the number of patched prompts, or prompts, that are finished."""


class Search(NamedTuple):
    """One model's recorded runs, what to find in them, and where progress is shown."""

    name: str
    replay: Replay
    """Of all prompts to search on."""
    splits: dict[Split, Replay]
    """The same, split, and the held-out prompts."""
    roles: dict[Split, Roles]
    """Of the tokens of each split's prompts."""
    config: CircuitConfig
    display: Display

    def bar(self, text: str, total: int) -> AbstractContextManager[Progress]:
        return self.display.bar(f"{self.name}: {text}", total)

    def status(self, text: str) -> AbstractContextManager[Any]:
        return self.display.status(f"{self.name}: {text}")

    @contextmanager
    def moving(self, what: str) -> Iterator[Report]:
        """Show the size of a circuit and what it explains as they move."""
        with self.display.status(f"{self.name}: minimal circuit of {what}") as status:

            def report(size: int, explained: float) -> None:
                if status is not None:
                    status.update(f"{self.name}: {size:,} {what} explain {explained:.1%} ...")

            yield report
