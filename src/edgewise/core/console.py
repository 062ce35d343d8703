"""What every long-running command shows: lines, a status and a progress bar, all on stderr."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

QUIET_SECONDS = 30.0
"""Between lines where there is no terminal to repaint."""


class Display:
    """Progress on stderr, where it does not get into a file that results are sent to."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet)

    def print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def status(self, what: str) -> Any:
        """Show what is being done inside a `with` block; a line where there is no terminal."""
        if self.console.is_terminal and not self.console.quiet:
            return self.console.status(f"{what} ...")
        self.print(f"{what} ...")
        return nullcontext()

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[float], None]]:
        """A bar that goes away; where there is no terminal, a line every half minute."""
        if not self.console.is_terminal:
            yield self._lines(what, total)
            return
        # time left first: a narrow terminal cuts the end
        columns = (TimeRemainingColumn(), BarColumn(), TextColumn("{task.description}"))
        quiet = self.console.quiet  # a display that nobody sees would still take what others print
        with Progress(*columns, console=self.console, transient=True, disable=quiet) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.advance(task, done)

    def _lines(self, what: str, total: int) -> Callable[[float], None]:
        done, printed = 0.0, time.monotonic()

        def advance(amount: float) -> None:
            nonlocal done, printed
            done += amount
            if time.monotonic() - printed >= QUIET_SECONDS:
                printed = time.monotonic()
                self.print(f"{what}: {done / total:.0%}")

        return advance
