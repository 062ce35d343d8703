"""All results in a folder as one JSON object for the page, with notes on what is damaged or missing.

Results are recognised by file name, at any depth: summary.json with log.jsonl (a sparsification), circuit.json with prompt
maps (a task), trace.json (a trace). Nothing is computed here but head types.
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgewise.circuits.prompt_maps import STEM as PROMPT_MAPS
from edgewise.circuits.result import FILE as CIRCUIT
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.report.tasks import has_prompt_maps, task_data
from edgewise.report.traces import MAX_LINKS, pair_traces, trace_data
from edgewise.report.training import training_data
from edgewise.tracing.result import FILE as TRACE

VERSION = 1
_SUMMARY = "summary.json"


def collect(folder: str | Path, *, max_links: int = MAX_LINKS) -> dict[str, Any]:
    """Everything that the page shows.

    Args:
        folder: Searched for results, at any depth.
        max_links: Links of a trace, those of most flow.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise EdgewiseError(
            f"{folder} is no folder; give one with results: circuit.json, trace.json, summary.json ..."
        )
    notes: list[str] = []
    tasks = _read_all(folder, CIRCUIT, partial(_task, folder, notes), notes)
    traces = _read_all(folder, TRACE, partial(trace_data, max_links=max_links), notes)
    trainings = [run for run in _read_all(folder, _SUMMARY, training_data, notes) if run]
    if not (tasks or traces or trainings):
        problems = "; ".join(notes) or "there is no circuit.json, trace.json or summary.json in it"
        raise EdgewiseError(f"{folder} holds nothing to report: {problems}")
    notes += _missing(folder, tasks, traces, trainings)
    return {
        "version": VERSION,
        "made": f"edgewise {version('edgewise')}",
        "title": folder.resolve().name,
        "notes": notes,
        "training": trainings[0] if trainings else None,
        "tasks": tasks,
        "traces": pair_traces(traces),
    }


def _read_all(folder: Path, name: str, read: Callable[[Path], Any], notes: list[str]) -> list[Any]:
    """What `read` makes of each file of this name; a file that it cannot read becomes a note."""
    contents = []
    for path in sorted(folder.rglob(name)):
        try:
            contents.append(read(path))
        except (EdgewiseError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
            notes.append(f"{path.relative_to(folder)} could not be read: {first_line(error)}")
    return contents


def _task(folder: Path, notes: list[str], path: Path) -> dict[str, Any]:
    task = task_data(path)
    if not has_prompt_maps(path.parent):
        where = path.parent.relative_to(folder)
        notes.append(f"{where} has no {PROMPT_MAPS}.json: its attention maps are not shown")
    return task


def _missing(folder: Path, tasks: list[Any], traces: list[Any], trainings: list[Any]) -> list[str]:
    """A note for each kind of result that the folder does not hold."""
    kinds = (
        ("circuits", "edgewise circuit ... --out", tasks),
        ("traces", "edgewise trace ... --out", traces),
        ("runs of post-training", "edgewise sparsify ... --out", trainings),
    )
    return [
        f"There are no {kind} in this report; `{command} {folder.name}/...` adds them."
        for kind, command, results in kinds
        if not results
    ]
