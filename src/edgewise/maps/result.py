"""Attention maps of a prompt, as data: what the grid shows, and all that is needed to draw it again without a model."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.maps.statistics import HeadMeasured, diagonal_change, summarise

STEM = "attention-maps"
_PLAIN = ("model", "title", "kind", "heads", "explained", "note")


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
    measured: dict[str, HeadMeasured]
    """Of all heads of the model, also those that are not shown."""
    explained: float | None = None
    """Share of the task's effect that the heads explain, if they were chosen for that."""
    note: str = ""
    """Why there are none."""

    @property
    def shown(self) -> list[HeadMeasured]:
        return [self.measured[head] for head in self.heads]


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """One panel for each model, on the same prompt."""

    prompt: str
    tokens: list[str]
    panels: list[Panel]
    task: str | None = None
    metric: str | None = None
    threshold: float | None = None
    """Share of the effect for which heads were chosen; None if they were given."""
    prompts: int | None = None
    """How many prompts chose them."""

    def to_dict(self) -> dict[str, Any]:
        content = asdict(replace(self, panels=[]))
        content["panels"] = [
            {
                **{key: getattr(panel, key) for key in _PLAIN},
                "summary": summarise(panel.shown),
                "measured": {head: asdict(measured) for head, measured in panel.measured.items()},
            }
            for panel in self.panels
        ]
        if len(self.panels) == 2:
            content["diagonal_change"] = diagonal_change(*(panel.measured for panel in self.panels))
        return content

    def save(self, folder: str | Path) -> list[Path]:
        """Write attention-maps.json and, beside it, the maps as attention-maps.safetensors."""
        paths = [Path(folder) / f"{STEM}.{ending}" for ending in ("json", "safetensors")]
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        maps = {str(place): np.ascontiguousarray(panel.maps) for place, panel in enumerate(self.panels)}
        save_file(maps, paths[1])
        return paths

    @classmethod
    def load(cls, folder: str | Path) -> "AttentionMaps":
        """Read what `save` wrote."""
        path = Path(folder) / f"{STEM}.json"
        try:
            content = json.loads(path.read_text())
            maps = load_file(path.with_suffix(".safetensors"))
            panels = [_panel(saved, maps[str(place)]) for place, saved in enumerate(content["panels"])]
            own = {key: content[key] for key in cls.__dataclass_fields__ if key != "panels"}
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise EdgewiseError(
                f"{folder} holds no attention maps of edgewise: {first_line(error)}"
            ) from error
        return cls(**own, panels=panels)


def _panel(saved: dict[str, Any], maps: np.ndarray) -> Panel:
    own = {key: saved[key] for key in _PLAIN}
    measured = {head: HeadMeasured.from_dict(values) for head, values in saved["measured"].items()}
    return Panel(**own, maps=maps, measured=measured)
