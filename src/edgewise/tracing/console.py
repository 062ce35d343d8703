"""What traces show on the terminal, side by side."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from edgewise.core.text import visible
from edgewise.tracing.config import TraceConfig
from edgewise.tracing.result import Trace


def print_traces(traces: Sequence[Trace], config: TraceConfig) -> None:
    """What was found, side by side."""
    first = traces[-1]
    key = first.main_key if config.key_place is None else config.key_place
    query = len(first.tokens) - 1
    at = f"{config.share:.0%}"
    table = Table(title=f"what leads from {first.prompt!r} to the next token", title_justify="left")
    table.add_column("")
    for each in traces:
        table.add_column(f"{visible(each.model, 40)} ({each.kind})", justify="right")

    def row(label: str, cells: list[str]) -> None:
        table.add_row(label, *cells)

    row("explained", [_logits(each) for each in traces])
    row("features kept", [f"{_n(each, 'features_kept')} of {_n(each, 'features_active')}" for each in traces])
    row("their influence", [f"{each.figures['influence_kept']:.0%}" for each in traces])
    row("influence of errors", [f"{each.figures['influence_of_errors']:.0%}" for each in traces])
    row(f"heads at {at}", [str(len(each.heads_at(config.share))) for each in traces])
    label = f"heads at {at}, {visible(first.tokens[key])} ({key + 1}) to {visible(first.tokens[query])} ({query + 1})"
    row(label, [str(len(each.heads_at(config.share, key, query))) for each in traces])
    row("  which", [_heads(each, config.share, key, query) for each in traces])
    row("began at that token", [f"{each.origins[key]:.0%}" for each in traces])
    for label, figure in (("features", "feature_correlation"), ("heads", "head_correlation")):
        row(f"predicted against actual, {label}", [_r(each, figure) for each in traces])
        row("  attention and norms kept", [_r(each, f"{figure}_frozen") for each in traces])
    row("sums close to", [f"{each.figures['closure']:.0e}" for each in traces])
    console = Console()
    console.print(table)
    for each in traces:
        named = ", ".join(f"{visible(c.label, 30)} ({c.layers})" for c in each.clusters[:5])
        console.print(f"{each.kind}: {named}", markup=False, highlight=False)
        for warning in each.warnings:
            console.print(f"{each.model}: {warning}", markup=False, highlight=False)


def _logits(each: Trace) -> str:
    return ", ".join(f"{visible(text)} {p:.1%}" for text, p in each.logits[:3])


def _heads(each: Trace, share: float, key: int, query: int) -> str:
    named = [f"L{layer}H{head} {part:.0%}" for layer, head, part in each.heads_at(share, key, query)]
    return "\n".join([*named[:6], *(["..."] if len(named) > 6 else [])])


def _n(each: Trace, figure: str) -> str:
    return f"{each.figures[figure]:,}"


def _r(each: Trace, figure: str) -> str:
    value = each.figures[figure]
    return "cannot be told" if value is None else f"r = {value:.2f}"
