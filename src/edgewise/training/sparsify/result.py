"""What a run of sparsification leaves behind."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from edgewise.core.errors import EdgewiseError
from edgewise.core.files import write_json
from edgewise.core.results import Result
from edgewise.core.schema import read_as, read_json_lines

SUMMARY, LOG = "summary.json", "log.jsonl"


@dataclass(frozen=True)
class _Summary:
    """What tables and pictures read of a summary."""

    density: float
    delta_ce: float
    model: str | None = None
    recipe: str | None = None
    seed: int | None = None
    tolerance: float | None = None
    dense_ce: float | None = None
    sparse_ce: float | None = None
    edges_per_query: float | None = None
    heads_closed: int | None = None
    heads: int | None = None
    tokens: int | None = None
    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, repr=False)
class SparsifyResult(Result):
    """The sparse twin and the metrics of its run."""

    drawn_by: ClassVar[str] = "edgewise.plots.run:draw_run"
    figure_name: ClassVar[str] = "run"

    summary: dict[str, Any]
    """All metrics of the finished run; losses are held-out, gates deterministic."""
    folder: Path
    """The run's `out`, from which `edgewise.load` reads the twin."""
    twin: Any = None
    """The trained model; None in a result that was loaded."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """The lines of log.jsonl: one for a step, one for a validation."""

    @classmethod
    def load(cls, folder: str | Path) -> "SparsifyResult":
        """Read the summary and the log of a finished run."""
        summary = read_summary(Path(folder, SUMMARY))
        if missing := [field.name for field in fields(_Summary) if summary.get(field.name) is None]:
            raise EdgewiseError(f"{Path(folder, SUMMARY)} is incomplete: it has no {', '.join(missing)}")
        return cls(summary, Path(folder), log=read_log(Path(folder)))

    def save(self, folder: str | Path | None = None) -> Path:
        """Write summary.json; the twin and the log are in the run's own folder."""
        return write_json(Path(folder or self.folder, SUMMARY), self.summary, indent=2)

    def table(self) -> list[list[str]]:
        summary = self.summary
        return [
            ["model", "density", "edges per query", "heads closed", "held-out loss", "against dense", "KL"],
            [
                str(summary["model"]),
                f"{summary['density']:.2%}",
                f"{summary['edges_per_query']:.2f}",
                f"{summary['heads_closed']} of {summary['heads']}",
                f"{summary['sparse_ce']:.4f}",
                f"{summary['delta_ce']:+.4f}",
                f"{summary['kl']:.4f}" if "kl" in summary else "",
            ],
        ]


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of log.jsonl."""
    return read_json_lines(folder / LOG, "log of a run")


def read_summary(path: Path) -> dict[str, Any]:
    """The content of summary.json."""
    read_as(_Summary, path, "summary of a run")
    return read_as(dict[str, Any], path, "summary of a run")
