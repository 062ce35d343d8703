"""Flows and attention maps of given prompts for the page: entries beside the tasks, with maps but without a circuit."""

from pathlib import Path
from typing import Any

import numpy as np

from edgewise.circuits.prompt_maps import quantise
from edgewise.core.text import visible
from edgewise.flow.result import Flow, Flows
from edgewise.maps.head_types import head_type
from edgewise.maps.result import AttentionMaps, Panel
from edgewise.reporting.packing import pack_maps


def flow_data(path: Path) -> dict[str, Any]:
    """The contents of flow.json: the open edges of each model (a row) on each prompt (a column)."""
    rows = Flows.load(path).rows
    columns = list(zip(*rows, strict=True))
    prompts = [_prompt(column[0], [_flow_maps(flow) for flow in column]) for column in columns]
    models = [_model(row[0].model, row[0].kind, row[0].layers, row[0].heads) for row in rows]
    name = visible(columns[0][0].prompt, 40) + (f" and {len(columns) - 1} more" if len(columns) > 1 else "")
    return _entry(f"flow of {name}", models, prompts)


def maps_data(path: Path) -> dict[str, Any]:
    """The contents of attention-maps.json: chosen heads on one prompt."""
    result = AttentionMaps.load(path.parent)
    models = []
    for panel in result.panels:
        layers, heads = _shape(panel)
        models.append(_model(panel.model, panel.kind, layers, heads) | {"shown": panel.heads})
    prompt = {
        "text": result.prompt,
        "tokens": result.tokens,
        "answers": [],
        "maps": [pack_maps(quantise(_whole_maps(panel))) for panel in result.panels],
        "types": [_types_of(panel) for panel in result.panels],
    }
    return _entry(f"maps of {visible(result.task or result.prompt, 40)}", models, [prompt])


def _entry(name: str, models: list[dict[str, Any]], prompts: list[dict[str, Any]]) -> dict[str, Any]:
    fields = {"task": name, "metric": "", "threshold": 0.9, "method": "", "ratios": {}}
    return {**fields, "models": models, "prompts": prompts}


def _model(name: str, kind: str, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model": name,
        "kind": kind,
        "layers": layers,
        "heads": heads,
        "accuracy": None,
        "prompts": 0,
        "warnings": [],
        "counts": {},
        "head_circuit": None,
        "edge_circuit": None,
    }


def _prompt(flow: Flow, maps: list[np.ndarray]) -> dict[str, Any]:  # [L, heads, t, t] each
    return {
        "text": flow.prompt,
        "tokens": flow.tokens,
        "answers": [answer for answer in flow.answers if answer][-1:],
        "maps": [pack_maps(quantise(of_model)) for of_model in maps],
        "types": [[[str(head_type(head, flow.tokens)) for head in layer] for layer in m] for m in maps],
    }


def _flow_maps(flow: Flow) -> np.ndarray:  # -> [L, heads, t, t]
    t = len(flow.tokens)
    maps = np.zeros((flow.layers, flow.heads, t, t))
    for edge in flow.edges:
        maps[edge.layer, edge.head, edge.query, edge.key] = edge.weight
    return maps


def _shape(panel: Panel) -> tuple[int, int]:
    indices = [_index(head) for head in panel.statistics]
    return max(layer for layer, _ in indices) + 1, max(head for _, head in indices) + 1


def _index(name: str) -> tuple[int, int]:
    layer, _, head = name.removeprefix("L").partition("H")
    return int(layer), int(head)


def _whole_maps(panel: Panel) -> np.ndarray:  # -> [L, heads, t, t]
    """Zero for heads that were not kept; the page shows only those that were."""
    maps = np.zeros((*_shape(panel), *panel.maps.shape[1:]))
    for head, weights in zip(panel.heads, panel.maps, strict=True):
        maps[_index(head)] = weights
    return maps


def _types_of(panel: Panel) -> list[list[str]]:
    layers, heads = _shape(panel)
    return [
        [
            str(of_head.type) if (of_head := panel.statistics.get(f"L{layer}H{head}")) else ""
            for head in range(heads)
        ]
        for layer in range(layers)
    ]
