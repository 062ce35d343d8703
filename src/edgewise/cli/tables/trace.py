"""Table of traces."""

from rich.table import Table

from edgewise.cli.tables.output import Output
from edgewise.core.text import visible
from edgewise.tracing.config import TraceConfig
from edgewise.tracing.traces import Traces


def print_traces(traces: Traces, config: TraceConfig) -> None:
    """Print what `Traces.table` says, the largest clusters and the warnings."""
    header, *rows = traces.table(config.share, config.key_position)
    table = Table(title=f"what leads from {traces[-1].prompt!r} to the next token", title_justify="left")
    table.add_column(header[0])
    for title in header[1:]:
        table.add_column(title, justify="right")
    for label, *cells in rows:
        heads = label == "  which"  # one below the other
        table.add_row(label, *(cell.replace(", ", "\n") if heads else cell for cell in cells))
    output = Output()
    output.print(table)
    for trace in traces:
        labels = ", ".join(f"{visible(c.label, 30)} ({c.layers})" for c in trace.clusters[:5])
        output.print_plain(f"{trace.kind}: {labels}")
        for warning in trace.warnings:
            output.print_plain(f"{trace.model}: {warning}")
