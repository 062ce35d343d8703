"""Attention maps of one prompt, as data: the grid can be drawn again without a model."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.errors import EdgewiseError
from edgewise.core.files import write_arrays, write_json
from edgewise.core.results import Result
from edgewise.core.schema import read_arrays, read_as, saved_form
from edgewise.maps.statistics import HeadStatistics, diagonal_change, summarise

STEM = "attention-maps"
_PLAIN = ("model", "title", "kind", "heads", "explained", "note")
_MEANS = ("peak", "entropy", "open_edges")


@dataclass(frozen=True, eq=False)
class Panel:
    """The maps of one model."""

    model: str
    title: str
    kind: str
    """dense or sparse"""
    heads: list[str]
    """L5H1 and so on, the most important first."""
    maps: np.ndarray  # float32 [heads, t, t]
    statistics: dict[str, HeadStatistics]
    """Of all heads of the model, also those that are not shown."""
    explained: float | None = None
    """Share of the task's effect that the heads explain, if they are a circuit."""
    note: str = ""
    """Why there are no heads."""

    @property
    def shown(self) -> list[HeadStatistics]:
        """Statistics of the heads that are shown."""
        return [self.statistics[head] for head in self.heads]


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMaps(Result):
    """Attention maps of one or two models on the same prompt, a panel for each model."""

    drawn_by = "edgewise.plots.attention_maps:draw_maps"
    figure_name = "attention-maps"

    prompt: str
    tokens: list[str]
    panels: list[Panel]
    task: str | None = None
    metric: str | None = None
    threshold: float | None = None
    """Share of the effect that the circuit must explain; None if the heads were given by name."""
    prompts: int | None = None
    """Prompts on which the circuit was searched."""

    def to_dict(self) -> dict[str, Any]:
        content = asdict(replace(self, panels=[]))
        content["panels"] = [
            {
                **{key: getattr(panel, key) for key in _PLAIN},
                "summary": summarise(panel.shown),
                "statistics": {head: asdict(of_head) for head, of_head in panel.statistics.items()},
            }
            for panel in self.panels
        ]
        if len(self.panels) == 2:
            content["diagonal_change"] = diagonal_change(*(panel.statistics for panel in self.panels))
        return content

    def table(self) -> list[list[str]]:
        """Heads, types and means of each panel."""
        rows = [["model", "kind", "heads", "explained", "peak", "entropy", "open edges", "types"]]
        for panel in self.panels:
            summary = summarise(panel.shown)
            means = ["-" if summary[key] is None else f"{summary[key]:.2f}" for key in _MEANS]
            explained = "-" if panel.explained is None else f"{panel.explained:.0%}"
            types = ", ".join(f"{name} {count}" for name, count in summary["types"].items())
            heads = f"{len(panel.heads)} of {len(panel.statistics)}"
            rows.append([panel.title, panel.kind, heads, explained, *means, types or panel.note])
        return rows

    def save(self, folder: str | Path) -> Path:
        """Write attention-maps.json and, beside it, the maps as attention-maps.safetensors."""
        path = Path(folder) / f"{STEM}.json"
        maps = {str(i): np.ascontiguousarray(panel.maps) for i, panel in enumerate(self.panels)}
        write_arrays(path.with_suffix(".safetensors"), maps)
        return write_json(path, self.to_dict())

    @classmethod
    def load(cls, folder: str | Path) -> "AttentionMaps":
        """Read what `save` wrote."""
        path = Path(folder) / f"{STEM}.json"
        saved_panels = list[saved_form(Panel, "maps")]
        saved = dict(vars(read_as(saved_form(cls, panels=saved_panels), path, "attention maps")))
        maps = read_arrays(path.with_suffix(".safetensors"), "attention maps")
        panels = []
        for index, panel in enumerate(saved.pop("panels")):
            of_panel, n = maps.get(str(index)), len(saved["tokens"])
            if of_panel is None or of_panel.shape != (len(panel.heads), n, n):
                raise EdgewiseError(f"{path} and its arrays do not belong together: see panel {index}")
            if unknown := [head for head in panel.heads if head not in panel.statistics]:
                raise EdgewiseError(f"{path}: there are no statistics of {unknown[0]}")
            panels.append(Panel(**vars(panel), maps=of_panel))
        return cls(**saved, panels=panels)
