"""Traces of one model, or of a dense model and its twin, saved where the report and other viewers find them."""

from collections.abc import Sequence
from pathlib import Path

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.tracing.config import TraceConfig
from edgewise.tracing.exchange import write_graph
from edgewise.tracing.explain import trace
from edgewise.tracing.result import Trace

GRAPHS = "graphs"


def save_traces(
    models: Sequence[str], transcoders: Sequence[str | Path] | None, config: TraceConfig, display: Display
) -> list[Trace]:
    """Trace the prompt in each model; write traces and graphs to the config's folder."""
    if not 1 <= len(models) <= 2:
        raise EdgewiseError(f"a trace is made of one model or of two, not {len(models)}")
    if transcoders is not None and len(transcoders) != len(models):
        raise EdgewiseError(
            f"{len(models)} models need as many transcoders, not {len(transcoders)}: --transcoder DIR"
            + (" DIR" if len(models) == 2 else "")
        )
    found = []
    for model, transcoder in zip(models, transcoders or [None] * len(models), strict=True):
        found.append(trace(model, transcoder, config, display=display))
    last = len(found[-1].tokens)
    if config.key is not None and config.key >= max(last, 2):
        raise EdgewiseError(
            f"--key {config.key} is not before the last token, which is number {last}; give 1 to {last - 1}"
        )
    for each, folder in zip(found, folders(found, config.out), strict=True):
        each.save(folder)
        write_graph(each, config.out / GRAPHS)
    return found


def folders(traces: Sequence[Trace], out: Path) -> list[Path]:
    """Where each trace is kept: the folder itself, or one for each of two."""
    if len(traces) == 1:
        return [out]
    kinds = [each.kind for each in traces]
    return [out / name for name in (kinds if kinds[0] != kinds[1] else ("first", "second"))]
