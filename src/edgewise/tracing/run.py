"""Traces of one model, or of a dense model and its twin: made, saved, drawn and told."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from edgewise.circuits.screen import Screen
from edgewise.drawing import save_figure, visible
from edgewise.errors import EdgewiseError
from edgewise.figures.trace_diagram import draw_trace
from edgewise.tracing.config import TraceConfig
from edgewise.tracing.exchange import write_graph
from edgewise.tracing.explain import trace
from edgewise.tracing.result import Trace

GRAPHS, DIAGRAM = "graphs", "trace-diagram"


def save_traces(
    models: Sequence[str], transcoders: Sequence[str | Path] | None, config: TraceConfig, screen: Screen
) -> list[Trace]:
    """Trace the prompt in each model; write traces, graphs and the diagram to the config's folder."""
    if not 1 <= len(models) <= 2:
        raise EdgewiseError(f"a trace is made of one model or of two, not {len(models)}")
    if transcoders is not None and len(transcoders) != len(models):
        raise EdgewiseError(
            f"{len(models)} models need as many transcoders, not {len(transcoders)}: --transcoder DIR"
            + (" DIR" if len(models) == 2 else "")
        )
    found = []
    for model, transcoder in zip(models, transcoders or [None] * len(models), strict=True):
        with screen.waiting(f"tracing {model}"):
            found.append(trace(model, transcoder, config))
    last = len(found[-1].tokens)
    if config.key is not None and config.key >= max(last, 2):
        raise EdgewiseError(
            f"--key {config.key} is not before the last token, which is number {last}; give 1 to {last - 1}"
        )
    for each, folder in zip(found, folders(found, config.out), strict=True):
        each.save(folder)
        write_graph(each, config.out / GRAPHS)
    key = None if config.key is None else config.key - 1
    save_figure(draw_trace(found, key, config.share), config.out / DIAGRAM)
    return found


def folders(traces: Sequence[Trace], out: Path) -> list[Path]:
    """Where each trace is kept: the folder itself, or one for each of two."""
    if len(traces) == 1:
        return [out]
    kinds = [each.kind for each in traces]
    return [out / name for name in (kinds if kinds[0] != kinds[1] else ("first", "second"))]


def print_traces(traces: Sequence[Trace], config: TraceConfig) -> None:
    """What was found, side by side."""
    first = traces[-1]
    key = first.main_key if config.key is None else config.key - 1
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
    return "too few" if value is None else f"r = {value:.2f}"
