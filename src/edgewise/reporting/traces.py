"""A trace for the page: its attribution graph with head shares, the flow through attention edges, attention maps."""

from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from edgewise.circuits.prompt_maps import quantise
from edgewise.core.schema import read_as
from edgewise.reporting.packing import pack_maps, rounded
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Link
from edgewise.tracing.traces import SUBFOLDERS
from edgewise.tracing.word_clusters import word_clusters

MAX_LINKS = 4000
"""Links of a trace on the page; a trace of a real model can have 60,000, and a page with all of them 100 MB."""
_MIN_HEAD_SHARE = 0.01  # of a link's weight, for a head to be listed with it
_COPIED_FIELDS = (
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
    "qk_attributions",
    "interventions",
    "metrics",
    "contexts",
    "warnings",
)  # of trace.json, as they are
_PAGE_NAMES = {"qk_attributions": "looks", "metrics": "figures"}
"""Names that the page's program knows a field by."""


def trace_data(path: Path, max_links: int = MAX_LINKS) -> dict[str, Any]:
    """The contents of trace.json and its arrays, with the links of most flow."""
    trace = Trace.load(path.parent)
    content = read_as(dict[str, Any], path, "trace")
    indices = _strongest_links(trace.links, {paths["link"] for paths in content["paths"]}, max_links)
    content["warnings"] = [*content["warnings"], *_left_out(len(trace.links), len(indices))]
    content["paths"] = [{**paths, "link": indices.index(paths["link"])} for paths in content["paths"]]
    max_flow = float(trace.cells.max()) or 1.0
    return {
        **{_PAGE_NAMES.get(field, field): content[field] for field in _COPIED_FIELDS},
        "links": [_link_data(trace.links[i], trace.head_shares[i]) for i in indices],
        "cells": pack_maps(quantise(trace.cells / max_flow)),
        "cells_largest": max_flow,
        "maps": pack_maps(quantise(trace.maps)),
        "main_key": trace.main_key,
        "names": {
            key: str(name)
            for key in trace.contexts
            if (name := trace.feature_name(*map(int, key.split("_"))))
        },
        "words": [asdict(cluster) for cluster in word_clusters(trace)],
        # exact, because they decide how many heads are named: in eight bits the smallest flows would count too much
        "arriving": [[rounded(head) for head in layer] for layer in trace.cells[:, :, -1]],
        "head_flow": [rounded(layer) for layer in trace.head_flow()],
    }


def pair_traces(traces: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The traces of each run together, the dense model's first; and a dense model's trace with the only one of a twin on the
    same prompt beside it. Each gets a label: its prompt, with the folder of its run where prompts are the same."""
    by_run: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for trace in traces:
        by_run.setdefault((_run_of(trace), trace["prompt"], *trace["tokens"]), []).append(trace)
    pairs = [sorted(group, key=lambda trace: trace["kind"] != "dense") for group in by_run.values()]
    pairs = _join_neighbours(pairs)
    prompts = [pair[0]["prompt"] for pair in pairs]
    for pair in pairs:
        run = f" ({_run_of(pair[0])})" if prompts.count(pair[0]["prompt"]) > 1 else ""
        for trace in pair:
            trace["label"] = f"{trace['prompt']}{run}"
    return pairs


def _run_of(trace: dict[str, Any]) -> str:
    """The folder that one command wrote: two models' traces are in subfolders of it."""
    folder = PurePosixPath(trace.get("run", ""))
    return str(folder.parent if folder.name in SUBFOLDERS else folder)


def _join_neighbours(pairs: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Pair single traces of a dense and a sparse model on the same prompt, if their folders are the only such neighbours."""
    neighbours: dict[tuple[str, ...], list[int]] = {}
    for number, pair in enumerate(pairs):
        if len(pair) == 1:
            parent = str(PurePosixPath(_run_of(pair[0])).parent)
            neighbours.setdefault((parent, pair[0]["prompt"], *pair[0]["tokens"]), []).append(number)
    joined = {}
    for numbers in neighbours.values():
        both = sorted((pairs[number][0] for number in numbers), key=lambda trace: trace["kind"] != "dense")
        if [trace["kind"] for trace in both] == ["dense", "sparse"]:
            joined[numbers[0]], joined[numbers[1]] = both, []
    return [pair for number, own in enumerate(pairs) if (pair := joined.get(number, own))]


def _strongest_links(links: list[Link], required: set[int], max_links: int) -> list[int]:
    """Indices, ascending, of the links with most flow and of those that are required."""
    strongest = sorted(range(len(links)), key=lambda i: -abs(links[i].flow))[:max_links]
    return sorted({*strongest, *required})


def _left_out(total: int, shown: int) -> list[str]:
    if total == shown:
        return []
    return [
        f"of {total:,} links the {shown:,} with most flow are shown; "
        f"the other {total - shown:,} are in the trace's own files"
    ]


def _link_data(link: Link, head_shares: np.ndarray) -> dict[str, Any]:  # [L, heads]
    layers, heads = (abs(head_shares) > _MIN_HEAD_SHARE * abs(link.weight)).nonzero()
    names = [f"L{layer}H{head}" for layer, head in zip(layers, heads, strict=True)]
    shares = sorted(
        zip(names, rounded(head_shares[layers, heads]), strict=True), key=lambda share: -abs(share[1])
    )
    return {
        "source": link.source,
        "target": link.target,
        "weight": link.weight,
        "flow": link.flow,
        "straight": link.straight,
        "heads": [[name, share] for name, share in shares],
    }
