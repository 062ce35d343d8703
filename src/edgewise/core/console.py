"""What every long-running command shows: lines, a status and a progress bar, all on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Display:
    """Progress on stderr, where it does not get into a file that results are sent to."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet)

    def print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def status(self, what: str) -> Any:
        is_seen = self.console.is_terminal and not self.console.quiet
        return self.console.status(f"{what} ...") if is_seen else nullcontext()

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[float], None]]:
        """A bar that goes away."""
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        quiet = self.console.quiet  # a display that nobody sees would still take what others print
        with Progress(*columns, console=self.console, transient=True, disable=quiet) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.advance(task, done)
