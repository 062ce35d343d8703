"""The pocket world: a closed world of about 800 words, and two small models that know it.

`world` makes sentences, `stream` packs them into rows, `evaluate` measures a model on held-out ones, `train`
makes the shipped weights.
"""

from pathlib import Path

NAMES = ("pocket", "pocket-addition", "pocket-sparse", "pocket-addition-sparse")
"""The models shipped with the package: two dense ones, and the twins that `edgewise sparsify` made of them."""


def folder(name: str) -> Path:
    """The folder of a shipped model, for `from_pretrained`."""
    if name not in NAMES:
        raise KeyError(f"no pocket model is called {name!r}; there are {', '.join(NAMES)}")
    return Path(__file__).parent / "weights" / name
