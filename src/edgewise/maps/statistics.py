"""What a map holds, in numbers, and what dense maps and their twin's hold beside each other.

As in `head_types`, the first query is left out, except from the count of open edges. Weights are those of the model: a
dense row sums to 1, a twin's to what its open edges hold.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewise.maps.head_types import TYPES, HeadType, head_type


@dataclass(frozen=True)
class HeadMeasured:
    """One head on one prompt."""

    type: HeadType
    weight: float
    """Of a query, on average: 1 if dense."""
    peak: float
    """The largest weight."""
    first_token: float
    """Weight on the first token, of a query on average."""
    diagonal: float
    """Weight on the current token, of a query on average."""
    strong_off_diagonal: int
    """Weights above 0.5 off the diagonal."""
    entropy: float
    """In nats, of a query that holds any weight, on average."""
    open_edges: int
    """Weights that are not 0."""

    @property
    def diagonal_dominant(self) -> bool:
        """Whether the diagonal holds at least half of the weight."""
        return self.type.name != "near-empty" and 2 * self.diagonal >= self.weight

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "HeadMeasured":
        return cls(**{**saved, "type": _type(saved["type"])})


def _type(saved: Mapping[str, Any]) -> HeadType:
    return HeadType(**{**saved, "parts": tuple(map(_type, saved["parts"]))})


def measure_head(weights: Any, tokens: Sequence[Hashable] | None = None) -> HeadMeasured:  # [t, t]
    """Type a map and measure it."""
    w = np.tril(np.asarray(weights, dtype=np.float64))
    rows, mass = w[1:], w[1:].sum(1)
    off = rows.copy()
    off[np.arange(len(rows)), np.arange(len(rows)) + 1] = 0
    p = rows[mass > 0] / mass[mass > 0][:, None]
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(1)
    n = max(len(rows), 1)
    return HeadMeasured(
        type=head_type(w, tokens),
        weight=float(mass.sum() / n),
        peak=float(rows.max(initial=0)),
        first_token=float(rows[:, :1].sum() / n),
        diagonal=float((rows - off).sum() / n),
        strong_off_diagonal=int((off > 0.5).sum()),
        entropy=float(entropy.mean()) if len(entropy) else 0.0,
        open_edges=int((w > 0).sum()),
    )


def summarise(heads: Iterable[HeadMeasured]) -> dict[str, Any]:
    """Of a panel: how many of each type, and means over its heads."""
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
    dense: Mapping[str, HeadMeasured], twin: Mapping[str, HeadMeasured]
) -> dict[str, dict[str, float]]:
    """Weight on the diagonal of every head that both have, and its change."""
    return {
        head: {
            "dense": dense[head].diagonal,
            "twin": twin[head].diagonal,
            "change": twin[head].diagonal - dense[head].diagonal,
        }
        for head in dense
        if head in twin
    }
