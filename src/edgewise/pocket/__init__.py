"""The pocket world: a closed world of about 800 words, two small models that know it, and their sparse twins.

Nothing imports this package. It registers its models (`embedded`) under the entry-point group `edgewise.models`, where
`edgewise.models.registry` finds them: their weights, text, skills and prompts.

    world       sentences and prompts      stream      sequences of them       addition    two-digit sums
    tokenizer   one token per word         evaluate    scores on prompts       data        text for training and evaluation
    recipe, train   how the weights were made: python -m edgewise.pocket.train pocket
"""

from pathlib import Path


def folder(name: str) -> Path:
    """The folder of one of the models, for `from_pretrained`."""
    path = Path(__file__).parent / "weights" / name
    if not path.is_dir():
        names = ", ".join(sorted(path.name for path in path.parent.iterdir()))
        raise KeyError(f"no pocket model is called {name!r}; there are {names}")
    return path
