"""All results in a folder as one JSON object for the page, with notes on what is damaged or missing.

Results are recognised by file name, at any depth: summary.json with log.jsonl (a sparsification), circuit.json with prompt
maps (a task), trace.json (a trace), flow.json, attention-maps.json, evaluation.json (loss and density). Nothing is computed
here but head types. Every run is there, named by its folder where names alone would be the same.
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgewise.circuits.prompt_maps import STEM as PROMPT_MAPS
from edgewise.circuits.result import FILE as CIRCUIT
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.files import is_folder
from edgewise.flow.result import FILE as FLOW
from edgewise.maps.result import STEM as MAPS
from edgewise.measure.evaluation import FILE as EVALUATION
from edgewise.reporting.prompts import flow_data, maps_data
from edgewise.reporting.tasks import has_prompt_maps, task_data
from edgewise.reporting.traces import MAX_LINKS, pair_traces, trace_data
from edgewise.reporting.training import evaluation_data, training_data
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
    if not is_folder(folder):
        raise EdgewiseError(
            f"{folder} is no folder; give one with results: circuit.json, trace.json, summary.json ..."
        )
    notes: list[str] = []
    tasks = _read_all(folder, CIRCUIT, partial(_task, folder, notes), notes)
    prompts = [
        *_read_all(folder, FLOW, flow_data, notes),
        *_read_all(folder, f"{MAPS}.json", maps_data, notes),
    ]
    traces = _read_all(folder, TRACE, partial(trace_data, max_links=max_links), notes)
    trainings = [run for run in _read_all(folder, _SUMMARY, training_data, notes) if run]
    evaluations = _read_all(folder, EVALUATION, evaluation_data, notes)
    if not (tasks or prompts or traces or trainings):
        problems = "; ".join(notes) or "there is no circuit.json, trace.json or summary.json in it"
        raise EdgewiseError(f"{folder} holds nothing to report: {problems}")
    notes += _missing(folder, tasks, traces, trainings)
    return {
        "version": VERSION,
        "made": f"edgewise {version('edgewise')}",
        "title": folder.resolve().name,
        "notes": notes,
        "trainings": trainings,
        "evaluations": {
            name: of_model for evaluation in evaluations for name, of_model in evaluation["models"].items()
        },
        "tasks": _named(tasks) + _named(prompts),
        "traces": pair_traces(traces),
    }


def _named(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tasks with the folder of their run in their names where names alone would be the same."""
    names = [task["task"] for task in tasks]
    return [
        task | {"task": f"{task['task']} ({task['run']})"} if names.count(task["task"]) > 1 else task
        for task in tasks
    ]


def _read_all(folder: Path, name: str, read: Callable[[Path], Any], notes: list[str]) -> list[Any]:
    """What `read` makes of each file of this name; a file that it cannot read becomes a note."""
    contents = []
    for path in sorted(folder.rglob(name)):
        try:
            content = read(path)
            if isinstance(content, dict):
                content["run"] = str(path.relative_to(folder).parent)
            contents.append(content)
        except (
            Exception
        ) as error:  # of values that no schema foresees; one bad result does not take the others with it
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
