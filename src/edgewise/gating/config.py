"""The gates: what tells them apart, and the configuration that travels with a sparse twin."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from edgewise.core.errors import EdgewiseError


class GateKind(NamedTuple):
    """One family member: z = s - kappa * lse + b. Another one is a line in `GATES`."""

    kappa: float
    learned: bool
    """Whether b is a parameter, one per head, or a constant."""
    meaning: str


GATES = {
    "score": GateKind(0.0, False, "open when the score exceeds -b; b constant"),
    "relative": GateKind(1.0, True, "open when the attention weight exceeds exp(-b); b learned per head"),
}


@dataclass(frozen=True)
class GateConfig:
    """What travels with a sparse twin: which gate, and where its threshold starts."""

    kind: str = "relative"
    """`relative`: open when the attention weight exceeds exp(-b), b learned per head. `score`: when score + b > 0."""
    b: float = 3.5
    """Start (`relative`) or value (`score`) of the gate's offset. Larger means more open."""
    sinks: bool = True
    """Whether edges to the first token of a text, where many models rest, may be open."""
    null_value: bool = False
    """Whether to attend to nothing has a value of its own, learned for each key/value head, instead of 0."""

    def __post_init__(self) -> None:
        if self.kind not in GATES:
            raise EdgewiseError(f"unknown gate {self.kind!r}; the gates are: {', '.join(GATES)}")
        if not math.isfinite(float(self.b)):
            raise EdgewiseError(f"the gate's b must be a finite number, not {self.b}")

    @property
    def kappa(self) -> float:
        return GATES[self.kind].kappa

    @property
    def learned(self) -> bool:
        return GATES[self.kind].learned
