"""A task for the page: each model's circuit, and attention maps with head types on the first prompts."""

from pathlib import Path
from typing import Any

import numpy as np

from edgewise.circuits.prompt_maps import STEM as PROMPT_MAPS
from edgewise.circuits.prompt_maps import PromptMaps
from edgewise.circuits.result import CircuitResult, ComponentCircuit, ModelCircuit
from edgewise.core.errors import EdgewiseError
from edgewise.maps.head_types import answer_positions, head_type
from edgewise.reporting.packing import pack_maps

MAX_EDGES = 400
"""Strongest edges of a circuit that the page can draw."""


def has_prompt_maps(folder: Path) -> bool:
    return (folder / f"{PROMPT_MAPS}.json").is_file()


def task_data(path: Path) -> dict[str, Any]:
    """The contents of circuit.json, with the prompt maps beside it if there are any."""
    result = CircuitResult.load(path)
    return {
        "task": result.task,
        "metric": result.metric,
        "threshold": result.threshold,
        "method": result.method,
        "ratios": result.ratios,
        "models": [_model_data(model, result.threshold) for model in result.models],
        "prompts": _prompts_data(path.parent, result) if has_prompt_maps(path.parent) else [],
    }


def _prompts_data(folder: Path, result: CircuitResult) -> list[dict[str, Any]]:
    prompt_maps, examples = PromptMaps.load(folder), result.examples
    prompts = []
    for i, (number, tokens) in enumerate(zip(prompt_maps.numbers, prompt_maps.tokens, strict=True)):
        maps_per_model = [model_maps[i] for model_maps in prompt_maps.maps]
        if any(maps.shape[-1] != len(tokens) * (len(tokens) + 1) // 2 for maps in maps_per_model):
            raise EdgewiseError(f"{PROMPT_MAPS} do not fit their tokens")
        if number >= len(examples):
            raise EdgewiseError(f"{PROMPT_MAPS} have more prompts than the circuit has examples")
        names = answer_positions(result.task, tokens, examples[number]["answers"])
        prompts.append(
            {
                "text": examples[number]["clean"],
                "tokens": tokens,
                "answers": examples[number]["answers"][:3],
                "maps": [pack_maps(maps) for maps in maps_per_model],
                "types": [_head_types(maps, tokens, names) for maps in maps_per_model],
            }
        )
    return prompts


def _head_types(
    maps: np.ndarray, tokens: list[str], names: list[int]
) -> list[list[str]]:  # uint8 [L, heads, t (t + 1) / 2]
    return [
        [str(head_type(_unpack_triangle(head, len(tokens)), tokens, names)) for head in layer]
        for layer in maps
    ]


def _unpack_triangle(lower: np.ndarray, t: int) -> np.ndarray:  # uint8 [t (t + 1) / 2] -> [t, t]
    weights = np.zeros((t, t))
    weights[np.tril_indices(t)] = lower / 255
    return weights


def _model_data(model: ModelCircuit, threshold: float) -> dict[str, Any]:
    effects = model.head_effects
    return {
        "model": model.model,
        "kind": model.kind,
        "layers": len(effects["lost"]) if effects else 0,
        "heads": len(effects["lost"][0]) if effects else 0,
        "accuracy": model.accuracy,
        "prompts": model.prompts - model.left_out,
        "warnings": model.warnings,
        "counts": model.counts(),
        "head_circuit": _circuit_data(model.heads, threshold),
        "edge_circuit": _circuit_data(model.edges, threshold, MAX_EDGES),
    }


def _circuit_data(
    circuit: ComponentCircuit | None, threshold: float, max_ranked: int | None = None
) -> dict[str, Any] | None:
    if circuit is None:
        return None
    prefix, curve = circuit.prefix, circuit.prefix.curve
    return {
        "total": circuit.total,
        "needed": prefix.needed,
        "threshold": threshold,
        "components": None if circuit.minimal is None else circuit.best.components,
        "minimal": None if circuit.minimal is None else circuit.minimal.size,
        "held_out": None if circuit.minimal is None else circuit.minimal.explained.held_out,
        "faithfulness": prefix.explained.fit,
        "curve": {
            "counts": curve.counts,
            "explained": curve.explained,
            "lower": curve.lower,
            "upper": curve.upper,
        },
        "ranking": [[name, round(value, 6)] for name, value in prefix.ranking[:max_ranked]],
    }
