"""Names of features, from their contexts: the tokens at which they are most active, and those that they promote.

    “said” → “Budapest”        active at "said" in most of its contexts, promotes "Budapest"

A name is as good as the few contexts that a trace holds; how many of them agree is part of it.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from edgewise.core.text import visible

_SHOWN, _LENGTH = 2, 14


@dataclass(frozen=True)
class FeatureName:
    """What a feature responds to and promotes."""

    responds: list[tuple[str, int]]
    """Tokens at the peaks of its contexts, and how many contexts each, most first."""
    promotes: list[str]
    contexts: int

    @property
    def specificity(self) -> float:
        """The share of the contexts whose peak is the same token."""
        return self.responds[0][1] / self.contexts if self.contexts else 0.0

    def __str__(self) -> str:
        """Short enough for a label: the commonest token, or the first two, and what is promoted most."""
        shown = [token for token, _ in self.responds[: 1 if self.specificity > 0.5 else _SHOWN]]
        promoted = f" → {_quoted(self.promotes[0])}" if self.promotes else ""
        return ", ".join(map(_quoted, shown)) + promoted


def feature_name(contexts: dict[str, dict[str, Any]], layer: int, number: int) -> FeatureName | None:
    """The name of a feature; None if the trace holds no contexts of it."""
    feature = contexts.get(f"{layer}_{number}")
    if not feature or not feature["contexts"]:
        return None
    peaks = Counter(context["tokens"][context["peak"]].strip() for context in feature["contexts"])
    return FeatureName(
        peaks.most_common(), [token.strip() for token, _ in feature["raised"]], len(feature["contexts"])
    )


def _quoted(token: str) -> str:
    return f"“{visible(token, _LENGTH)}”"
