"""All that a folder of results holds, as one JSON object for the page. What is damaged or missing is said in its notes.

Found by the names of files, at any depth: summary.json with log.jsonl (a post-training), circuit.json with prompt-maps
(a task), trace.json (a trace). Nothing is computed here but the types of heads.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgewise import __version__
from edgewise.circuits.prompt_maps import STEM as PROMPT_MAPS
from edgewise.circuits.prompt_maps import PromptMaps, in_eight_bits
from edgewise.circuits.result import FILE as CIRCUIT
from edgewise.circuits.result import CircuitResult, ComponentCircuit, ModelCircuit
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.maps.head_types import head_type
from edgewise.tracing.result import FILE as TRACE
from edgewise.tracing.result import Trace

VERSION = 1
_LEAST_HEAD = 0.01  # of a link's weight, for a head to be listed with it
_MOST_LINKS = 4000  # of a trace
_LOG_POINTS = 400
_WIRING = 400  # strongest edges of a circuit that are drawn


def collect(folder: str | Path) -> dict[str, Any]:
    """Everything for the page."""
    folder = Path(folder)
    if not folder.is_dir():
        raise EdgewiseError(
            f"{folder} is no folder; give one with results: circuit.json, trace.json, summary.json ..."
        )
    notes: list[str] = []

    def each(name: str, read: Callable[[Path], Any]) -> Iterator[Any]:
        for path in sorted(folder.rglob(name)):
            try:
                yield read(path)
            except (EdgewiseError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
                notes.append(f"{path.relative_to(folder)} could not be read: {first_line(error)}")

    tasks = list(each(CIRCUIT, lambda path: _task(path, notes, folder)))
    traces = list(each(TRACE, _trace))
    trainings = [found for found in each("summary.json", _training) if found]
    if not (tasks or traces or trainings):
        problems = "; ".join(notes) or "there is no circuit.json, trace.json or summary.json in it"
        raise EdgewiseError(f"{folder} holds nothing to report: {problems}")
    for what, command, found in (
        ("circuits", "edgewise circuit ... --out", tasks),
        ("traces", "edgewise trace ... --out", traces),
        ("runs of post-training", "edgewise sparsify ... --out", trainings),
    ):
        if not found:
            notes.append(f"There are no {what} in this report; `{command} {folder.name}/...` adds them.")
    return {
        "version": VERSION,
        "made": f"edgewise {__version__}",
        "title": folder.resolve().name,
        "notes": notes,
        "training": trainings[0] if trainings else None,
        "tasks": tasks,
        "traces": _pairs(traces),
    }


# -------------------------------------------------------------------------------------------------------------------- tasks


def _task(path: Path, notes: list[str], folder: Path) -> dict[str, Any]:
    result = CircuitResult.load(path)
    prompts = []
    if (path.parent / f"{PROMPT_MAPS}.json").is_file():
        maps = PromptMaps.load(path.parent)
        for place, tokens in enumerate(maps.tokens):
            of_models = [of_model[place] for of_model in maps.maps]
            if any(each.shape[-1] != len(tokens) * (len(tokens) + 1) // 2 for each in of_models):
                raise EdgewiseError(f"{PROMPT_MAPS} do not fit their tokens")
            example = result.examples[place]
            prompts.append(
                {
                    "text": example["clean"],
                    "tokens": tokens,
                    "answers": example["answers"][:3],
                    "maps": [packed(each) for each in of_models],
                    "types": [_types(each, tokens) for each in of_models],
                }
            )
    else:
        notes.append(
            f"{path.parent.relative_to(folder)} has no {PROMPT_MAPS}.json: its attention maps are not shown"
        )
    return {
        "task": result.task,
        "metric": result.metric,
        "threshold": result.threshold,
        "method": result.method,
        "ratios": result.ratios,
        "models": [_model(model) for model in result.models],
        "prompts": prompts,
    }


def _model(model: ModelCircuit) -> dict[str, Any]:
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
        "head_circuit": _found(model.heads, None),
        "edge_circuit": _found(model.edges, _WIRING),
    }


def _found(found: ComponentCircuit | None, most: int | None) -> dict[str, Any] | None:
    if found is None:
        return None
    curve = found.curve
    return {
        "total": found.total,
        "needed": found.needed,
        "faithfulness": found.faithfulness,
        "curve": {
            "counts": curve.counts,
            "explained": curve.explained,
            "lower": curve.lower,
            "upper": curve.upper,
        },
        "ranking": [[name, round(value, 6)] for name, value in found.ranking[:most]],
    }


def _types(maps: np.ndarray, tokens: list[str]) -> list[list[str]]:  # uint8 [L, heads, t (t + 1) / 2]
    return [[str(head_type(_square(each, len(tokens)), tokens)) for each in layer] for layer in maps]


def _square(lower: np.ndarray, t: int) -> np.ndarray:
    square = np.zeros((t, t))
    square[np.tril_indices(t)] = lower / 255
    return square


def packed(maps: np.ndarray) -> dict[str, Any]:  # uint8 [L, heads, cells]
    """As it is, or as the list of open edges: whichever is shorter. Places count through [L, heads, cells]."""
    flat = np.ascontiguousarray(maps).reshape(-1)
    (places,) = flat.nonzero()
    shape = list(maps.shape)
    if 5 * len(places) < len(flat):
        data = places.astype("<u4").tobytes() + flat[places].tobytes()
        return {"kind": "list", "shape": shape, "count": len(places), "data": _base64(data)}
    return {"kind": "whole", "shape": shape, "count": len(flat), "data": _base64(flat.tobytes())}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# ------------------------------------------------------------------------------------------------------------------- traces


def _trace(path: Path) -> dict[str, Any]:
    found = Trace.load(path.parent)
    largest = float(found.cells.max()) or 1.0
    content = json.loads(path.read_text())
    kept = _strongest([link.flow for link in found.links], {each["link"] for each in content["paths"]})
    if left := len(found.links) - len(kept):
        shown = f"of {len(found.links):,} links the {len(kept):,} with most flow are here"
        content["warnings"] = [
            *content["warnings"],
            f"{shown}; the other {left:,} are in the trace's own files",
        ]
    content["paths"] = [{**each, "link": kept.index(each["link"])} for each in content["paths"]]
    links = []
    for link, carried in ((found.links[i], found.head_shares[i]) for i in kept):
        layers, heads = (abs(carried) > _LEAST_HEAD * abs(link.weight)).nonzero()
        named = [[f"L{i}H{j}", float(f"{carried[i, j]:.4g}")] for i, j in zip(layers, heads, strict=True)]
        named.sort(key=lambda each: -abs(each[1]))
        links.append(
            {
                "source": link.source,
                "target": link.target,
                "weight": link.weight,
                "flow": link.flow,
                "straight": link.straight,
                "heads": named,
            }
        )
    return {
        **{key: content[key] for key in _AS_IT_IS},
        "links": links,
        "cells": packed(in_eight_bits(found.cells / largest)),
        "cells_largest": largest,
        "maps": packed(in_eight_bits(found.maps)),
        "main_key": found.main_key,
        # what decides how many heads are named, exactly: eight bits would make much of little
        "arriving": [[_short(head) for head in layer] for layer in found.cells[:, :, -1]],
        "head_flow": [_short(layer) for layer in found.head_flow()],
    }


def _strongest(flows: list[float], needed: set[int]) -> list[int]:
    """The places of the links that are shown, in their order: those with most flow, and some whatever they have. A real
    model's trace can have 60,000, and a page that holds them all 100 MB."""
    first = sorted(range(len(flows)), key=lambda i: -abs(flows[i]))[:_MOST_LINKS]
    return sorted({*first, *needed})


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{x:.4g}") for x in values]


_AS_IT_IS = (
    "model",
    "kind",
    "transcoder",
    "prompt",
    "tokens",
    "logits",
    "nodes",
    "clusters",
    "strengths",
    "origins",
    "paths",
    "looks",
    "interventions",
    "figures",
    "contexts",
    "warnings",
)


def _pairs(traces: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Traces of one prompt together, the dense model's first."""
    by_prompt: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in traces:
        by_prompt.setdefault((each["prompt"], *each["tokens"]), []).append(each)
    return [sorted(group, key=lambda each: each["kind"] != "dense")[:2] for group in by_prompt.values()]


# ------------------------------------------------------------------------------------------------------------ post-training


def _training(path: Path) -> dict[str, Any] | None:
    """Of a post-training; a summary.json of something else is passed over."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or "delta_ce" not in content or "density" not in content:
        return None
    log = path.parent / "log.jsonl"
    steps = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    checked = [each for each in steps if "delta_ce" in each]
    running = [each for each in steps if "expected_density" in each]
    thin = max(1, len(running) // _LOG_POINTS)
    keys = (
        "model",
        "recipe",
        "seed",
        "tolerance",
        "dense_ce",
        "sparse_ce",
        "delta_ce",
        "density",
        "edges_per_query",
    )
    keys += ("heads_closed", "heads", "tokens", "steps", "seconds", "tasks")
    return {
        **{key: content.get(key) for key in keys},
        "pressure": [[each["tokens"], each["beta"]] for each in running[::thin]],
        "checks": [[each["tokens"], each["density"], each["delta_ce"]] for each in checked],
    }
