"""The text that embedded models bring along."""

from edgewise.data.batch import Data
from edgewise.models.registry import embedded


def embedded_data(name: str, seed: int, held_out: int = 512) -> Data | None:
    """Training text and `held_out` sequences of the embedded model of this name; None if there is none."""
    model = embedded(name)
    return None if model is None else model.data(seed, held_out)
