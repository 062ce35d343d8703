"""Table of circuits."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgewise.circuits.result import CircuitResult


def print_circuits(result: CircuitResult) -> None:
    """Print the result's table to stdout, and its warnings to stderr."""
    share, metric = f"{result.threshold:.0%}", result.metric
    title = f"{result.task}: what explains {share} of the {metric} ({result.method})"
    table = Table(title=escape(title), title_justify="left")
    (_, *columns), *rows = ([escape(cell) for cell in row] for row in result.table())
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    for warning in result.warnings:
        Console(stderr=True).print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)
