"""A trace as data: plain values in trace.json, arrays beside it, so that it can be drawn and explored without a model."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from edgewise.core.errors import EdgewiseError, first_line

FILE, ARRAYS = "trace.json", "trace.safetensors"


@dataclass(frozen=True)
class Node:
    """A token's embedding, an active feature, an error or a logit."""

    id: str
    kind: str
    """token, feature, error or logit"""
    layer: int
    """-1 for a token, the number of layers for a logit."""
    number: int
    """Of the feature, or of the token in the vocabulary; -1 for an error."""
    position: int
    """Counted from 0."""
    label: str
    influence: float
    """Share of the logits that comes through it."""
    value: float | None = None
    """Activation of a feature, probability of a logit."""
    origin: int | None = None
    """The position of the token that a feature responds to."""


@dataclass(frozen=True)
class Link:
    """What one node contributes to another; how heads carry it is in `Trace.head_shares`."""

    source: str
    target: str
    weight: float
    flow: float
    """Its share of the logits."""
    straight: float
    """What of the weight goes along the residual stream, past all heads."""


@dataclass(frozen=True)
class LinkPaths:
    """The heads that carry a link, in the order in which they do."""

    link: int
    """Its place among the links."""
    paths: list[tuple[str, float]]
    """L3H1, or L1H0 then L3H1, with the weight that goes this way; largest first."""
    longer: float
    """What goes through three heads or more."""


@dataclass(frozen=True)
class Cluster:
    """Some of a trace's nodes."""

    label: str
    """The word it responds to; "large at is" if it stands at another."""
    nodes: list[str]
    first_layer: int | None
    """None: embeddings only."""
    last_layer: int | None
    influence: float

    @property
    def layers(self) -> str:
        if self.first_layer is None:
            return "embedding"
        if self.first_layer == self.last_layer:
            return f"layer {self.first_layer}"
        return f"layers {self.first_layer}-{self.last_layer}"


@dataclass(frozen=True)
class HeadLook:
    """Why a head looks where it looks: the largest pairs in its score."""

    layer: int
    head: int
    query: int
    key: int
    weight: float
    score: float
    rest: float
    """What all pairs that are not named add."""
    pairs: list[tuple[str, str, float]]
    """Query's source, key's source, contribution."""


@dataclass(frozen=True)
class Intervention:
    """What taking one thing away does to the logit."""

    what: str
    """A feature's id, or L5H1."""
    predicted: float
    frozen: float
    """In the model, with attention patterns and norms' denominators as they were."""
    actual: float
    """In the model."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One prediction of one model, explained."""

    model: str
    kind: str
    """dense or sparse"""
    transcoder: str
    prompt: str
    tokens: list[str]
    ids: list[int]
    logits: list[tuple[str, float]]
    """The tokens that are explained, and their probabilities."""
    nodes: list[Node]
    links: list[Link]
    clusters: list[Cluster]
    strengths: list[list[float]]
    """The share of each cluster's input, and last of the output's, that comes from each cluster."""
    origins: list[float]
    """The share of the logits that began as the embedding of each token."""
    paths: list[LinkPaths]
    """Of the links between positions with most flow."""
    looks: list[HeadLook]
    interventions: list[Intervention]
    contexts: dict[str, dict[str, Any]]
    """Of a feature, as layer_number: where it is most active (tokens, activations, peak), and which tokens it promotes."""
    figures: dict[str, Any]
    """closure, correlations, shares kept, thresholds, counts, seconds."""
    head_shares: np.ndarray  # float32 [links, L, heads]: each link's weight as carried by each head
    cells: np.ndarray  # float32 [L, heads, T, T]: the flow through each attention edge, query by key
    maps: np.ndarray  # float32 [L, heads, T, T]: attention weights
    warnings: list[str] = field(default_factory=list)

    def head_flow(self, key: int | None = None, query: int | None = None) -> np.ndarray:  # [L, heads]
        """The share of the logits that each head carries, in all or only from a key or to a query (counted from 0)."""
        length = len(self.tokens)
        for name, position in {"key": key, "query": query}.items():
            if position is not None and not 0 <= position < length:
                raise EdgewiseError(f"there is no {name} {position}: positions go from 0 to {length - 1}")
        cells = self.cells if query is None else self.cells[:, :, query : query + 1]
        cells = cells if key is None else cells[..., key : key + 1]
        return cells.sum((-2, -1), dtype=np.float64)

    def heads_at(
        self, share: float = 0.8, key: int | None = None, query: int | None = None
    ) -> list[tuple[int, int, float]]:
        """The fewest heads that carry a share of what attention carries into the logits: layer, head and its part, largest
        first. With `key` and `query`: of what it carries from that key, to that query."""
        if not 0 < share <= 1:
            raise EdgewiseError(f"the share must be above 0 and at most 1, not {share}")
        flow = self.head_flow(key, query)
        total = flow.sum()
        if not total > 0:
            return []
        order = np.argsort(-flow, axis=None, kind="stable")
        parts = flow.flatten()[order] / total
        needed = int((np.cumsum(parts) < share * (1 - 1e-9)).sum()) + 1
        heads = flow.shape[1]
        return [
            (int(i) // heads, int(i) % heads, float(p)) for i, p in zip(order[:needed], parts, strict=False)
        ]

    @property
    def main_key(self) -> int:
        """The position from which heads bring most to the last one (other than itself)."""
        brought = self.cells[:, :, -1].sum((0, 1))
        return int(brought[:-1].argmax()) if len(brought) > 1 else 0

    def save(self, folder: str | Path) -> list[Path]:
        """Write trace.json and trace.safetensors into a folder."""
        paths = [Path(folder) / FILE, Path(folder) / ARRAYS]
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        content = {key: value for key, value in asdict(self).items() if key not in _ARRAYS}
        paths[0].write_text(json.dumps(content, indent=1) + "\n")
        save_file({key: np.ascontiguousarray(getattr(self, key)) for key in _ARRAYS}, paths[1])
        return paths

    @classmethod
    def load(cls, folder: str | Path) -> "Trace":
        """Read what `save` wrote."""
        try:
            content = json.loads((Path(folder) / FILE).read_text())
            arrays = load_file(Path(folder) / ARRAYS)
            for key, kind in _PARTS.items():
                content[key] = [kind(**each) for each in content[key]]
            content["logits"] = [(text, p) for text, p in content["logits"]]
            content |= {key: arrays[key] for key in _ARRAYS}
            return cls(**content)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise EdgewiseError(f"{folder} holds no trace of edgewise: {first_line(error)}") from error


_ARRAYS = ("head_shares", "cells", "maps")
_PARTS: dict[str, Any] = {
    "nodes": Node,
    "links": Link,
    "clusters": Cluster,
    "paths": LinkPaths,
    "looks": HeadLook,
    "interventions": Intervention,
}
