"""`edgewise report`."""

import webbrowser
from pathlib import Path
from typing import Annotated

import tyro


def report(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    out: Path | None = None,
    open: bool = False,
) -> None:
    """Write one HTML page to explore all results in a folder: maps, flow, circuits, traces, the run. Works offline.

    Examples:
      edgewise report runs/demo --open

    Args:
        folder: A folder in which other commands have left their results, at any depth.
        out: The page; report.html in the folder if not given.
        open: Show it in the browser.
    """
    # imports numpy: `edgewise --help` need not wait for it
    from edgewise.reporting.page import report as write_report

    path = write_report(folder, out)
    print(path)
    if open:
        webbrowser.open(path.resolve().as_uri())
