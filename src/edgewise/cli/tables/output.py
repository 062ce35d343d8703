"""Where tables go: standard output, with a width that fits them."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgewise.core.files import write_json
from edgewise.core.results import Result


class Output(Console):
    """Standard output; a file or a pipe has no width to fit, so it gets a generous one."""

    def __init__(self, width: int = 200) -> None:
        super().__init__()
        if not self.is_terminal:
            self.width = width

    def print_plain(self, text: str) -> None:
        """Print text as it is: no markup, no highlighting, no wrapping."""
        self.print(text, markup=False, highlight=False, soft_wrap=True)


def write_results(content: Any, path: Path) -> None:
    """Write results to the JSON file that `out` names, and say so."""
    write_json(path, content, indent=2)
    Output().print_plain(f"Written to {path}")


def print_result(output: Output, result: Result, title: str) -> None:
    """Print a result's own table."""
    header, *rows = result.table()
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    output.print(table)
