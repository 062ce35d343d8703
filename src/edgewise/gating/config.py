"""The gates by name, and the gate configuration that is saved with a sparse twin."""

from dataclasses import dataclass
from typing import NamedTuple

from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import Offset, check_fields


class GateKind(NamedTuple):
    """A member of the family z = s - kappa * lse + b. To add one, add a line to `GATES`."""

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
    """A sparse twin's gate; saved in its `config.json`."""

    kind: str = "relative"
    """`relative`: open when the attention weight exceeds exp(-b), b learned per head. `score`: when score + b > 0."""
    b: Offset = 3.5
    """Initial value (`relative`) or constant (`score`) of the threshold offset. Larger means more open edges."""
    sinks: bool = True
    """Whether edges to the first token of a text, an attention sink in many models, may be open."""
    null_value: bool = False
    """Whether closed attention mass reads a learned vector per key/value head, instead of 0."""

    def __post_init__(self) -> None:
        if self.kind not in GATES:
            raise EdgewiseError(f"unknown gate {self.kind!r}; the gates are: {', '.join(GATES)}")
        check_fields(self)

    @property
    def kappa(self) -> float:
        return GATES[self.kind].kappa

    @property
    def learned(self) -> bool:
        return GATES[self.kind].learned
