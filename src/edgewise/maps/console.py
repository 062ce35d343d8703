"""What `edgewise maps` prints: dense against twin."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgewise.maps.head_types import TYPES
from edgewise.maps.result import AttentionMaps
from edgewise.maps.statistics import summarise

MOST = 20
"""Heads to a table; all are in the JSON."""
_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("diagonal_dominant", "diagonal-dominant heads", "{:.0%}".format),
    ("peak", "peak weight", "{:.2f}".format),
    ("weight", "weight of a query", "{:.2f}".format),
    ("first_token", "  on the first token", "{:.2f}".format),
    ("diagonal", "  on the diagonal", "{:.2f}".format),
    ("entropy", "entropy of a query, nats", "{:.2f}".format),
    ("open_edges", "open edges of a map", "{:.1f}".format),
    ("strong_off_diagonal", "weights above 0.5 off the diagonal of a map", "{:.1f}".format),
)


def print_maps(maps: AttentionMaps) -> None:
    """Types and means of each panel's heads, then every head of the second panel in both models."""
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a file or a pipe has no width to fit
    chosen = "" if maps.threshold is None else f", heads that explain {maps.threshold:.0%} of {maps.task}"
    table = Table(title=f"attention maps of {len(maps.tokens)} tokens{escape(chosen)}", title_justify="left")
    table.add_column("")
    for panel in maps.panels:
        table.add_column(escape(panel.title), justify="right")
    two = len(maps.panels) == 2
    if two:
        table.add_column("change", justify="right")
    found = [summarise(panel.shown) for panel in maps.panels]
    counts = [f"{len(panel.heads)} of {len(panel.statistics)}" for panel in maps.panels]
    table.add_row("heads", *counts, *[""] * two)
    for name in TYPES:
        if any(name in of["types"] for of in found):
            table.add_row(f"  {name}", *(str(of["types"].get(name, 0)) for of in found), *[""] * two)
    for key, label, shown in _ROWS:
        values = [of[key] for of in found]
        cells = ["-" if value is None else shown(value) for value in values]
        if two:
            change = None if None in values else values[1] - values[0]
            cells.append("" if change is None else _signed(shown(change)))
        table.add_row(label, *cells)
    console.print(table)
    if two and maps.panels[1].heads:
        console.print(_heads(maps))
    for panel in maps.panels:
        if panel.note:
            console.print(panel.note, markup=False, highlight=False, soft_wrap=True)


def _heads(maps: AttentionMaps) -> Table:
    first, second = maps.panels
    title = f"heads of {escape(second.title)}, and their weight on the diagonal"
    left_out = len(second.heads) - MOST
    table = Table(title=title, title_justify="left", caption=f"and {left_out} more" if left_out > 0 else None)
    columns: list[Any] = ["head", escape(first.title), escape(second.title), "diagonal", "", "change"]
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place > 2 else "left")
    for head in second.heads[:MOST]:
        if head in first.statistics:
            a, b = first.statistics[head], second.statistics[head]
            change = _signed(f"{b.diagonal - a.diagonal:.2f}")
            table.add_row(head, str(a.type), str(b.type), f"{a.diagonal:.2f}", f"{b.diagonal:.2f}", change)
    return table


def _signed(number: str) -> str:
    if not number.strip("-0.%"):
        return number.lstrip("-")
    return number if number.startswith("-") else f"+{number}"
