"""What a run of sparsification leaves behind."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from edgewise.core.results import Result

SUMMARY, LOG = "summary.json", "log.jsonl"


@dataclass(frozen=True, repr=False)
class SparsifyResult(Result):
    """The sparse twin and the figures of its run."""

    drawn_by: ClassVar[str] = "edgewise.plots.run:draw_run"
    figure_name: ClassVar[str] = "run"

    summary: dict[str, Any]
    """All figures of the finished run; losses are held-out, gates deterministic."""
    folder: Path
    """The run's `out`, from which `edgewise.load` reads the twin."""
    twin: Any = None
    """The trained model; None in a result that was loaded."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """The lines of log.jsonl: one for a step, one for a validation."""

    @classmethod
    def load(cls, folder: str | Path) -> "SparsifyResult":
        """Read the summary and the log of a finished run."""
        summary = json.loads(Path(folder, SUMMARY).read_text())
        return cls(summary, Path(folder), log=read_log(Path(folder)))

    def save(self, folder: str | Path | None = None) -> Path:
        """Write summary.json; the twin and the log are in the run's own folder."""
        path = Path(folder or self.folder, SUMMARY)
        path.write_text(json.dumps(self.summary, indent=2) + "\n")
        return path

    def table(self) -> list[list[str]]:
        summary = self.summary
        return [
            ["model", "density", "edges per query", "heads closed", "held-out loss", "against dense"],
            [
                str(summary["model"]),
                f"{summary['density']:.2%}",
                f"{summary['edges_per_query']:.2f}",
                f"{summary['heads_closed']} of {summary['heads']}",
                f"{summary['sparse_ce']:.4f}",
                f"{summary['delta_ce']:+.4f}",
            ],
        ]


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
