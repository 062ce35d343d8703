"""Attention maps of one prompt, as data: the grid can be drawn again without a model."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.results import Result
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
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        maps = {str(i): np.ascontiguousarray(panel.maps) for i, panel in enumerate(self.panels)}
        save_file(maps, path.with_suffix(".safetensors"))
        return path

    @classmethod
    def load(cls, folder: str | Path) -> "AttentionMaps":
        """Read what `save` wrote."""
        path = Path(folder) / f"{STEM}.json"
        try:
            content = json.loads(path.read_text())
            maps = load_file(path.with_suffix(".safetensors"))
            panels = [_panel(saved, maps[str(i)]) for i, saved in enumerate(content["panels"])]
            others = {key: content[key] for key in cls.__dataclass_fields__ if key != "panels"}
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise EdgewiseError(
                f"{folder} holds no attention maps of edgewise: {first_line(error)}"
            ) from error
        return cls(**others, panels=panels)


def _panel(saved: dict[str, Any], maps: np.ndarray) -> Panel:
    plain = {key: saved[key] for key in _PLAIN}
    statistics = {head: HeadStatistics.from_dict(values) for head, values in saved["statistics"].items()}
    return Panel(**plain, maps=maps, statistics=statistics)
