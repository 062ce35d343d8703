"""Traces as they are drawn, with any heads, words and clusters, without a model."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Cluster, Node

PROMPT = ["The", "opposite", "of", '"', "large", '"', "is", '"']
Group = tuple[tuple[int, ...], int, int, int, float]
"""Words that a cluster responds to, where it position, its first and last layer, its influence."""
GROUPS: list[Group] = [
    ((3, 5, 7), 7, 0, 10, 1.9),
    ((4,), 4, 0, 3, 1.6),
    ((1,), 1, 0, 1, 0.9),
    ((4,), 7, 8, 11, 0.5),
    ((6,), 6, 2, 2, 0.1),
]


def make_trace(
    heads: int,
    kind: str = "sparse",
    tokens: list[str] = PROMPT,
    key: int = 4,
    layers: int = 12,
    width: int = 12,
    stray: int = 0,
    groups: Sequence[Group] = GROUPS,
    **changes: Any,
) -> Trace:
    """A trace in which `heads` heads carry 80 % from the key to the last token; `stray` of them attend more to another."""
    t, draw = len(tokens), np.random.default_rng(heads)
    maps = np.tril(draw.random((layers, width, t, t)) ** (4 if kind == "dense" else 40) + np.eye(t)).astype(
        np.float32
    )
    maps /= maps.sum(-1, keepdims=True)
    cells = np.zeros_like(maps)
    carrying = sorted(draw.choice(layers * width, heads, replace=False).tolist(), reverse=True)
    for rank, number in enumerate(carrying):
        at = divmod(number, width)
        cells[(*at, t - 1, key)] = 1.0 + 0.1 / (rank + 1)
        maps[at][t - 1] = np.eye(t)[0 if rank >= heads - stray else key] * 0.7 + 0.3 / t
    cells *= 0.801 / max(cells.sum(), 1e-9)
    rest = [number for number in range(layers * width) if number not in carrying]
    for number in rest if heads else []:
        cells[(*divmod(number, width), t - 1, key)] = 0.199 / len(rest)
    nodes = [Node(f"E_{i}", "token", -1, i, i, word, 0.01) for i, word in enumerate(tokens)]
    clusters = []
    for words, position, first, last, influence in groups:
        names = [f"{layer}_{word}_{position}" for layer in range(first, last + 1) for word in words]
        for layer in range(first, last + 1):
            nodes += [
                Node(f"{layer}_{w}_{position}", "feature", layer, 0, position, "", 0.1, 1.0, w) for w in words
            ]
        own = position in words
        names += [f"E_{word}" for word in words] * own
        label = tokens[words[0]].strip() + ("" if own else f" at {tokens[position].strip()}")
        clusters.append(Cluster(label, names, first, last, influence))
    origins = [0.2 / max(t - 1, 1)] * t
    origins[key] = 0.8
    values = {
        "model": "gpt2" if kind == "dense" else "runs/gpt2-sparse",
        "kind": kind,
        "transcoder": "gpt2",
        "prompt": " ".join(tokens),
        "tokens": [*tokens],
        "ids": [*range(t)],
        "logits": [(" small", 0.62)],
        "nodes": nodes,
        "clusters": clusters,
        "strengths": [[0.2] * len(clusters) for _ in range(len(clusters) + 1)],
        "origins": origins,
        "metrics": {"influence_of_errors": 0.23},
        "head_shares": np.zeros((0, layers, width), dtype=np.float32),
        "cells": cells,
        "maps": maps,
    }
    not_drawn = {field.name: [] for field in fields(Trace)} | {"contexts": {}}
    return Trace(**(not_drawn | values | changes))


def make_pair(dense: int = 12, twin: int = 3, **options: Any) -> list[Trace]:
    return [make_trace(dense, "dense", **options), make_trace(twin, **options)]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]
