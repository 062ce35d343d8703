"""What a search for circuits shows: how far it is, and what it found."""

from rich.console import Console
from rich.table import Table

from edgewise.circuits.result import CircuitResult, Found, ModelCircuit


def print_result(result: CircuitResult) -> None:
    """The table of a search."""
    percent = f"{result.threshold:.0%}"
    table = Table(
        title=f"{result.task}: what explains {percent} of the {result.metric} ({result.method})",
        title_justify="left",
    )
    table.add_column("")
    for model in result.models:
        table.add_column(f"{model.model} ({model.kind})", justify="right")
    ratios = result.ratios
    if ratios:
        table.add_column("times fewer", justify="right")

    def row(label: str, cells: list[str], ratio: str | None = None) -> None:
        value = ratios.get(ratio) if ratio else None
        table.add_row(label, *cells, *([f"{value:.1f}" if value else ""] if ratios else []))

    models = result.models
    row("prompts used", [f"{m.prompts - m.left_out} of {m.prompts}" for m in models])
    row("accuracy", [f"{m.accuracy:.1%}" for m in models])
    row("clean / corrupt score", [f"{m.clean_score:.2f} / {m.corrupt_score:.2f}" for m in models])
    row("heads", [_found(m.heads) for m in models], "heads")
    row("  each prompt's own", [_own(m.heads) for m in models], "heads_per_prompt")
    if any(m.edges for m in models):
        row("edges", [_found(m.edges) for m in models], "edges")
        row("  each prompt's own", [_own(m.edges) for m in models], "edges_per_prompt")
        row("  pairs of heads joined", [_pairs(m) for m in models], "head_head_edges")
    row("token edges open", [_mean(m, "open") for m in models], "open_token_edges")
    row("token edges used", [_mean(m, "used") for m in models], "token_edges")
    row(
        "first heads",
        [", ".join(name for name, _ in m.heads.ranking[:4]) if m.heads else "-" for m in models],
    )
    Console().print(table)
    for model in models:
        for warning in model.warnings:
            Console(stderr=True).print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)


def _found(found: Found | None) -> str:
    return "-" if found is None else f"{found.needed:,} of {found.total:,}"


def _own(found: Found | None) -> str:
    return "-" if found is None else "{:,.1f} ± {:,.1f}".format(*found.per_prompt)


def _pairs(model: ModelCircuit) -> str:
    return "-" if model.head_head_edges is None else "{:,} of {:,}".format(*model.head_head_edges)


def _mean(model: ModelCircuit, what: str) -> str:
    if model.token_edges is None:
        return "-"
    values = getattr(model.token_edges, what)
    return f"{sum(values) / len(values):,.1f}"
