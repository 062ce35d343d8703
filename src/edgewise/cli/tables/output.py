"""Where tables go: standard output, with a width that fits them."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from edgewise.core.errors import EdgewiseError


class Output(Console):
    """Standard output; a file or a pipe has no width to fit, so it gets a generous one."""

    def __init__(self, width: int = 200) -> None:
        super().__init__()
        if not self.is_terminal:
            self.width = width

    def print_plain(self, text: str) -> None:
        """Print text as it is: no markup, no highlighting, no wrapping."""
        self.print(text, markup=False, highlight=False, soft_wrap=True)


def write_json(content: Any, path: Path) -> None:
    """Write figures to the JSON file that `out` names, and say so."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise EdgewiseError(f"cannot write {path}: {error.strerror}") from error
    Output().print_plain(f"Written to {path}")
