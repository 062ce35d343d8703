"""A sparsification run for the page: what it reached, and the course of density, loss and multiplier."""

import json
from pathlib import Path
from typing import Any

MAX_LOG_POINTS = 400
_FIELDS = (
    "model",
    "recipe",
    "seed",
    "tolerance",
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
    summary = json.loads(path.read_text())
    if not isinstance(summary, dict) or "delta_ce" not in summary or "density" not in summary:
        return None
    log = path.parent / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    validations = [line for line in lines if "delta_ce" in line]
    steps = [line for line in lines if "expected_density" in line]
    stride = max(1, len(steps) // MAX_LOG_POINTS)
    return {
        **{field: summary.get(field) for field in _FIELDS},
        "pressure": [[step["tokens"], step["beta"]] for step in steps[::stride]],
        "checks": [[line["tokens"], line["density"], line["delta_ce"]] for line in validations],
    }
