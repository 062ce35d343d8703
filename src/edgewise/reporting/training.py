"""A sparsification run for the page: what it reached, and the course of density, loss and multiplier."""

from pathlib import Path
from typing import Any

from edgewise.core.schema import read_as
from edgewise.training.sparsify.result import LOG, read_log, read_summary

MAX_LOG_POINTS = 400
_FIELDS = (
    "model",
    "recipe",
    "seed",
    "tolerance",
    "constraint",
    "kl",
    "dense_ce",
    "sparse_ce",
    "delta_ce",
    "density",
    "edges_per_query",
    "heads_closed",
    "heads",
    "tokens",
    "steps",
    "seconds",
    "tasks",
)  # of summary.json


def training_data(path: Path) -> dict[str, Any] | None:
    """The contents of summary.json and of log.jsonl beside it; None if the summary is of something else."""
    content = read_as(dict[str, Any], path, "summary")
    if "delta_ce" not in content or "density" not in content:
        return None
    summary = read_summary(path)
    log = path.parent / LOG
    lines = read_log(path.parent) if log.is_file() else []
    validations = [line for line in lines if "delta_ce" in line]
    steps = [line for line in lines if "expected_density" in line]
    stride = max(1, len(steps) // MAX_LOG_POINTS)
    return {
        **{field: summary.get(field) for field in _FIELDS},
        "pressure": [[step["tokens"], step["beta"]] for step in steps[::stride]],
        "checks": [
            [line["tokens"], line["density"], line["delta_ce"], line.get("held_out_kl")]
            for line in validations
        ],
    }


def evaluation_data(path: Path) -> dict[str, Any]:
    """Loss and density of each model in an evaluation."""
    measured = read_as(dict[str, Any], path, "evaluation")
    fields = ("ce", "density", "edges_per_query")
    return {
        "models": {
            name: {field: of_model.get(field) for field in fields} for name, of_model in measured.items()
        }
    }
