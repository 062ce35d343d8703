"""A trace as data: plain values in trace.json, arrays beside it, so that it can be drawn and explored without a model."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.files import write_arrays, write_json
from edgewise.core.results import Result
from edgewise.core.schema import read_arrays, read_as, saved_form
from edgewise.core.text import visible
from edgewise.tracing.feature_names import FeatureName, feature_name
from edgewise.tracing.schema import Cluster, Intervention, Link, LinkPaths, Node, QKAttribution

FILE, ARRAYS = "trace.json", "trace.safetensors"
_ARRAY_FIELDS = ("head_shares", "cells", "maps")


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Result):
    """One prediction of one model, explained."""

    drawn_by: ClassVar[str] = "edgewise.plots.trace_diagram:draw_trace"
    figure_name: ClassVar[str] = "trace-diagram"

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
    """The share of the logits that is attributed to each token's embedding."""
    paths: list[LinkPaths]
    """Of the links between positions with most flow."""
    qk_attributions: list[QKAttribution]
    """Of the attention edges with most flow."""
    interventions: list[Intervention]
    contexts: dict[str, dict[str, Any]]
    """Of a feature, as layer_number: where it is most active (tokens, activations, peak), and which tokens it promotes."""
    metrics: dict[str, Any]
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
        return fewest_heads(self.head_flow(key, query), share)

    @property
    def main_key(self) -> int:
        """The position from which heads carry most to the last one (other than itself). If the answer is in the prompt, and
        heads carry at least half as much from there, that one: a copied word is explained by its source."""
        flow = self.cells[:, :, -1].sum((0, 1))[:-1]
        if not len(flow):
            return 0
        most, answer = int(flow.argmax()), self.logits[0][0].strip()
        sources = [i for i, token in enumerate(self.tokens[:-1]) if answer and token.strip() == answer]
        source = max(sources, key=lambda i: flow[i], default=most)
        return source if 2 * flow[source] >= flow[most] else most

    def feature_name(self, layer: int, number: int) -> FeatureName | None:
        """What a feature responds to and promotes, from its contexts; None without any."""
        return feature_name(self.contexts, layer, number)

    @property
    def measured_on(self) -> str:
        """What every effect of the trace is a change of."""
        answers = " / ".join(visible(text.strip() or text) for text, _ in self.logits[:3])
        return f"log odds of {answers}"

    def table(self) -> list[list[str]]:
        try:
            rows = self.summary()
        except (KeyError, TypeError, ValueError, IndexError) as error:  # of a file that somebody has changed
            raise EdgewiseError(f"this trace is incomplete or damaged: {first_line(error)}") from error
        return [["", self.title], *([label, value] for label, value in rows)]

    @property
    def title(self) -> str:
        return f"{visible(self.model, 40)} ({self.kind})"

    def summary(self, share: float = 0.8, key: int | None = None) -> list[tuple[str, str]]:
        """Labels and values: the heads that carry a share of all, and from the token at `key` to the last one."""
        key, query, metrics = self.main_key if key is None else key, len(self.tokens) - 1, self.metrics
        heads = [f"L{layer}H{head} {part:.0%}" for layer, head, part in self.heads_at(share, key, query)]
        edge = f"{visible(self.tokens[key])} ({key + 1}) to {visible(self.tokens[query])} ({query + 1})"
        rows = [
            ("explained", ", ".join(f"{visible(text)} {p:.1%}" for text, p in self.logits[:3])),
            ("features kept", f"{metrics['features_kept']:,} of {metrics['features_active']:,}"),
            ("their influence", f"{metrics['influence_kept']:.0%}"),
            ("influence of errors", f"{metrics['influence_of_errors']:.0%}"),
            (f"heads at {share:.0%}", str(len(self.heads_at(share)))),
            (f"heads at {share:.0%}, {edge}", str(len(heads))),
            ("  which", ", ".join([*heads[:6], *(["..."] if len(heads) > 6 else [])])),
            ("attributed to that token", f"{self.origins[key]:.0%}"),
        ]
        rows.append(("measured on", self.measured_on))
        for kind in ("feature", "head", "token"):
            r = [_correlation(metrics.get(f"{kind}_correlation{ending}")) for ending in ("", "_replaced")]
            rows.append((f"effects of {kind}s: graph, replaced model", f"{r[0]}, {r[1]}"))
        frozen = [_correlation(metrics.get(f"{kind}_correlation_frozen")) for kind in ("feature", "head")]
        rows.append(("  graph, attention and norms frozen", ", ".join(frozen)))
        return [*rows, ("sums close to", f"{metrics['closure']:.0e}")]

    def save(self, folder: str | Path) -> Path:
        """Write trace.json and trace.safetensors into a folder."""
        content = {name: value for name, value in asdict(self).items() if name not in _ARRAY_FIELDS}
        write_arrays(
            Path(folder) / ARRAYS, {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAY_FIELDS}
        )
        return write_json(Path(folder) / FILE, content)

    @classmethod
    def load(cls, folder: str | Path) -> "Trace":
        """Read what `save` wrote."""
        path = Path(folder) / FILE
        saved: dict[str, Any] = dict(vars(read_as(saved_form(cls, *_ARRAY_FIELDS), path, "trace")))
        arrays: dict[str, Any] = read_arrays(Path(folder) / ARRAYS, "trace")
        if missing := [name for name in _ARRAY_FIELDS if name not in arrays]:
            raise EdgewiseError(f"{Path(folder) / ARRAYS} lacks {missing[0]}")
        trace = cls(**saved, **{name: arrays[name] for name in _ARRAY_FIELDS})
        trace.check(path)
        return trace

    def check(self, path: Path) -> None:
        """Refuse a trace whose parts do not belong together; `path` is named in the error."""
        layers, heads = self.maps.shape[:2] if self.maps.ndim == 4 else (0, 0)
        t = len(self.tokens)
        sizes = {
            "maps": (layers, heads, t, t),
            "cells": (layers, heads, t, t),
            "head_shares": (len(self.links), layers, heads),
        }
        for name, size in sizes.items():
            if getattr(self, name).shape != size or 0 in size[-2:]:
                raise EdgewiseError(f"{path} and its arrays do not belong together: see {name}")
        ids = {node.id for node in self.nodes}
        lost = [end for link in self.links for end in (link.source, link.target) if end not in ids]
        lost += [node for cluster in self.clusters for node in cluster.nodes if node not in ids]
        if lost:
            raise EdgewiseError(f"{path}: there is no node {lost[0]}")
        if any(not 0 <= paths.link < len(self.links) for paths in self.paths):
            raise EdgewiseError(f"{path}: paths of a link that there is not")
        if len(self.origins) != t or not self.logits:
            raise EdgewiseError(f"{path} is incomplete: it has no logits, or not the origin of each token")


def fewest_heads(flow: np.ndarray, share: float) -> list[tuple[int, int, float]]:  # [L, heads]
    """The fewest heads with a share of the flow: layer, head and its part, largest first."""
    total = flow.sum()
    if not total > 0:
        return []
    order = np.argsort(-flow, axis=None, kind="stable")
    shares = flow.flatten()[order] / total
    needed = int((np.cumsum(shares) < share * (1 - 1e-9)).sum()) + 1
    heads = flow.shape[1]
    return [(int(i) // heads, int(i) % heads, float(p)) for i, p in zip(order[:needed], shares, strict=False)]


def _correlation(r: float | None) -> str:
    return "undefined" if r is None else f"r = {r:.2f}"
