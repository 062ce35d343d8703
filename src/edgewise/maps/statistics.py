"""Statistics of attention maps, one by one and averaged over the heads of a model.

As in `head_types`, the first query is left out, except from the count of open edges. Weights are those of the model: a dense
query's sum to 1, a sparse twin's to the mass of its open edges.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewise.maps.head_types import TYPES, HeadType, head_type


@dataclass(frozen=True)
class HeadStatistics:
    """Type and statistics of one head on one prompt."""

    type: HeadType
    weight: float
    """Mean attention mass of a query: 1 if dense."""
    peak: float
    """Largest weight."""
    first_token: float
    """Mean weight of a query on the first token."""
    diagonal: float
    """Mean weight of a query on the current token."""
    strong_off_diagonal: int
    """Weights above 0.5 off the diagonal."""
    entropy: float
    """Mean entropy, in nats, of the queries that hold any weight."""
    open_edges: int
    """Weights that are not 0."""

    @property
    def diagonal_dominant(self) -> bool:
        """Whether the diagonal holds at least half of the weight."""
        return self.type.name != "near-empty" and 2 * self.diagonal >= self.weight


def head_statistics(
    weights: Any, tokens: Sequence[Hashable] | None = None, names: Sequence[int] = ()
) -> HeadStatistics:  # [t, t]
    """Classify and measure one attention map. `names`: as in `head_type`."""
    w = np.tril(np.asarray(weights, dtype=np.float64))
    queries, mass = w[1:], w[1:].sum(1)
    off_diagonal = queries.copy()
    off_diagonal[np.arange(len(queries)), np.arange(len(queries)) + 1] = 0
    p = queries[mass > 0] / mass[mass > 0][:, None]
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(1)
    n = max(len(queries), 1)
    return HeadStatistics(
        type=head_type(w, tokens, names),
        weight=float(mass.sum() / n),
        peak=float(queries.max(initial=0)),
        first_token=float(queries[:, :1].sum() / n),
        diagonal=float((queries - off_diagonal).sum() / n),
        strong_off_diagonal=int((off_diagonal > 0.5).sum()),
        entropy=float(entropy.mean()) if len(entropy) else 0.0,
        open_edges=int((w > 0).sum()),
    )


def summarise(heads: Iterable[HeadStatistics]) -> dict[str, Any]:
    """Heads of each type, and means over heads; the means are None if there are no heads."""
    heads = list(heads)

    def mean(values: Iterable[float]) -> float | None:
        return float(np.mean(list(values))) if heads else None

    counts = Counter(head.type.name for head in heads)
    return {
        "heads": len(heads),
        "types": {name: counts[name] for name in TYPES if counts[name]},
        "diagonal_dominant": mean(head.diagonal_dominant for head in heads),
        "peak": mean(head.peak for head in heads),
        "weight": mean(head.weight for head in heads),
        "first_token": mean(head.first_token for head in heads),
        "diagonal": mean(head.diagonal for head in heads),
        "strong_off_diagonal": mean(head.strong_off_diagonal for head in heads),
        "heads_strong_off_diagonal": mean(head.strong_off_diagonal > 0 for head in heads),
        "entropy": mean(head.entropy for head in heads),
        "open_edges": mean(head.open_edges for head in heads),
    }


def diagonal_change(
    dense: Mapping[str, HeadStatistics], twin: Mapping[str, HeadStatistics]
) -> dict[str, dict[str, float]]:
    """Weight on the diagonal of every head that both models have, and its change."""
    return {
        head: {
            "dense": dense[head].diagonal,
            "twin": twin[head].diagonal,
            "change": twin[head].diagonal - dense[head].diagonal,
        }
        for head in dense
        if head in twin
    }
