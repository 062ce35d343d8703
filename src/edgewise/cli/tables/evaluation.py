"""Tables of an evaluation: loss, density and edges of each model, attention sinks, each head."""

from rich.markup import escape
from rich.table import Table

from edgewise.cli.tables.output import Output
from edgewise.core.results import Result
from edgewise.measure.benchmarks import Benchmarks
from edgewise.measure.evaluation import Evaluation
from edgewise.measure.loss import Measured


def print_evaluation(results: Evaluation, heads: bool = False) -> None:
    """Print a table with a line for each model; with `heads` also each head's edges per query."""
    output = Output()
    first = next(iter(results.values()))
    _print_table(output, results)
    note = f"{first.tokens:,} held-out tokens; edges per query are per head"
    if len(results) > 1:
        note += f"; loss (± standard error) and KL against {next(iter(results))}"
    output.print_plain(note)
    if first.sinks is not None:
        output.print(_sinks_table(results))
    for name, measured in results.items() if heads else ():
        output.print(_heads_table(name, measured))


def print_benchmarks(scores: Benchmarks) -> None:
    """Print a line for each task, the twin beside the dense model."""
    _print_table(Output(), scores)


def _print_table(output: Output, result: Result) -> None:
    header, *rows = result.table()
    table = Table(*(escape(cell) for cell in header))
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    output.print(table)


def _heads_table(name: str, measured: Measured) -> Table:
    columns = [f"H{head}" for head in range(measured.density_per_head.shape[1])]
    table = Table("", *columns, title=escape(f"{name}: edges per query"))
    for layer, heads in enumerate(measured.edges_per_query_per_head.tolist()):
        table.add_row(f"L{layer}", *(f"{edges:.2f}" if edges else "·" for edges in heads))
    return table


def _sinks_table(results: Evaluation) -> Table:
    table = Table(
        "attention of a query and head", "first token", "all tokens", "heads with over half on the first"
    )
    for name, measured in results.items():
        if (sinks := measured.sinks) is not None:
            heads = f"{sinks.heads} of {sinks.first.numel()}"
            table.add_row(escape(name), f"{sinks.first.mean():.3f}", f"{sinks.total.mean():.3f}", heads)
    return table
