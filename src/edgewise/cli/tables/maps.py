"""Tables of attention maps: head types and statistics, dense against twin."""

from collections.abc import Callable
from typing import Any

from rich.markup import escape
from rich.table import Table

from edgewise.cli.tables.output import Output
from edgewise.maps.head_types import TYPES
from edgewise.maps.result import AttentionMaps
from edgewise.maps.statistics import summarise

MAX_HEADS = 20
"""Heads in the table; all are in the JSON."""
_STATISTICS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
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
    """Print types and mean statistics of each panel's heads, then each head of the second panel in both models."""
    output = Output(width=160)
    output.print(_panels(maps))
    if len(maps.panels) == 2 and maps.panels[1].heads:
        output.print(_heads(maps))
    for panel in maps.panels:
        if panel.note:
            output.print_plain(panel.note)


def _panels(maps: AttentionMaps) -> Table:
    circuit = "" if maps.threshold is None else f", heads that explain {maps.threshold:.0%} of {maps.task}"
    title = f"attention maps of {len(maps.tokens)} tokens{escape(circuit)}"
    table = Table("", title=title, title_justify="left")
    for panel in maps.panels:
        table.add_column(escape(panel.title), justify="right")
    compared = len(maps.panels) == 2
    if compared:
        table.add_column("change", justify="right")
    summaries = [summarise(panel.shown) for panel in maps.panels]
    counts = [f"{len(panel.heads)} of {len(panel.statistics)}" for panel in maps.panels]
    table.add_row("heads", *counts, *[""] * compared)
    for name in TYPES:
        if any(name in summary["types"] for summary in summaries):
            n_heads = (str(summary["types"].get(name, 0)) for summary in summaries)
            table.add_row(f"  {name}", *n_heads, *[""] * compared)
    for key, label, formatted in _STATISTICS:
        values = [summary[key] for summary in summaries]
        cells = ["-" if value is None else formatted(value) for value in values]
        if compared:
            cells.append("" if None in values else _signed(formatted(values[1] - values[0])))
        table.add_row(label, *cells)
    return table


def _heads(maps: AttentionMaps) -> Table:
    first, second = maps.panels
    title = f"heads of {escape(second.title)}, and their weight on the diagonal"
    left_out = len(second.heads) - MAX_HEADS
    table = Table(title=title, title_justify="left", caption=f"and {left_out} more" if left_out > 0 else None)
    columns: list[Any] = ["head", escape(first.title), escape(second.title), "diagonal", "", "change"]
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i > 2 else "left")
    for head in second.heads[:MAX_HEADS]:
        if head in first.statistics:
            a, b = first.statistics[head], second.statistics[head]
            change = _signed(f"{b.diagonal - a.diagonal:.2f}")
            table.add_row(head, str(a.type), str(b.type), f"{a.diagonal:.2f}", f"{b.diagonal:.2f}", change)
    return table


def _signed(number: str) -> str:
    if not number.strip("-0.%"):
        return number.lstrip("-")
    return number if number.startswith("-") else f"+{number}"
