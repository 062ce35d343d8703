"""Models that are installed with a package, by name: Edgewise's own small ones, and those of others.

A package registers a sequence of `EmbeddedModel` under the entry-point group `edgewise.models`:

    [project.entry-points."edgewise.models"]
    pocket = "edgewise.pocket.embedded:MODELS"

`edgewise.load("pocket")` then finds the weights, `edgewise.sparsify("pocket")` the text, and no module imports that package.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.schema import read_json
from edgewise.models.twin_format import ADAPTERS_KEY, TWIN_KEY

GROUP = "edgewise.models"
"""The entry-point group."""


class PromptFormat(Protocol):
    """How prompts are written for a model that does not continue text, such as one that adds numbers."""

    defaults: Sequence[str]
    """Prompts to show where none is given."""

    def write(self, prompt: str) -> tuple[str, str]:
        """A prompt as it is shown (53+21), and as the model reads it (53+21=?????)."""
        ...

    def is_answer(self, token: str) -> bool:
        """Whether the model's prediction at this token is (a part of) its answer."""
        ...


@dataclass(frozen=True)
class EmbeddedModel:
    """A model that is installed with a package."""

    name: str
    folder: Path
    """Its checkpoint, as `from_pretrained` or `edgewise.save` leaves it; a transcoder may be in `transcoder/`."""
    dense: str
    """The embedded dense model that it is a twin of; its own name if it is dense."""
    license: str = "mit"
    """Of its weights, as the hub calls it."""
    make_data: Callable[[int, int], Any] | None = None
    """(seed, held-out sequences) -> `edgewise.data.Data`: the text that belongs to it; None if it has none."""
    make_folder: Callable[[Path], None] | None = None
    """Make the folder where it is missing, on first use."""
    skills: Callable[[Any], dict[str, float]] | None = None
    """model -> scores on the tasks that it was made for, which a training run puts into its summary."""
    vocabulary: Mapping[str, int] | None = None
    """Token -> id, by which a tokenizer is recognised."""
    prompt_format: PromptFormat | None = None
    """None if prompts are plain text."""
    was_trained_on: Callable[[str, Sequence[str] | None], bool] = lambda kind, combination: False
    """(kind of sentence, words drawn together) -> whether its training text contains such a sentence."""

    def data(self, seed: int = 0, held_out: int = 512) -> Any:
        """The text that belongs to it, as `edgewise.data.Data` with so many held-out sequences."""
        if self.make_data is None:
            raise EdgewiseError(
                f"{self.name} has no text of its own; give `data`: a file, a folder or a dataset's name"
            )
        return self.make_data(seed, held_out)

    @property
    def transcoder(self) -> Path | None:
        """The folder of its transcoder, if it has one."""
        folder = self.folder / "transcoder"
        return folder if folder.is_dir() else None


@cache
def embedded_models() -> dict[str, EmbeddedModel]:
    """All embedded models by name, those of a package in its order."""
    models: dict[str, EmbeddedModel] = {}
    for entry in entry_points(group=GROUP):
        try:
            registered = {model.name: model for model in entry.load()}
        except Exception as error:  # somebody else's package
            raise EdgewiseError(
                f"the models of the entry point {entry.value} cannot be registered: {first_line(error)}"
            ) from error
        if duplicates := models.keys() & registered:
            raise EdgewiseError(f"two packages register a model named {min(duplicates)}")
        models |= registered
    return models


def embedded(name: str | Path) -> EmbeddedModel | None:
    """The embedded model of a name; None if there is none."""
    return embedded_models().get(str(name))


def embedded_for(tokenizer: Any) -> EmbeddedModel | None:
    """The embedded model that has a tokenizer's vocabulary; None if there is none."""
    vocabulary = tokenizer.get_vocab()
    return next((model for model in embedded_models().values() if model.vocabulary == vocabulary), None)


def embedded_origin(name: str | Path) -> EmbeddedModel | None:
    """The embedded dense model that a name stands for or that a twin's folder was made from; None if there is none."""
    model = embedded(name) or (embedded(_base_name(Path(name))) if str(name) else None)
    return None if model is None else embedded(model.dense)


def embedded_name(address: str) -> str:
    """The name of the embedded model whose folder this is; any other address unchanged."""
    return {str(model.folder): model.name for model in embedded_models().values()}.get(address, address)


def _base_name(folder: Path) -> str:
    """The model that a twin's folder was made from, as its summary or its adapters say; empty if they do not."""
    for file, *keys in (("summary.json", "model"), ("config.json", TWIN_KEY, ADAPTERS_KEY, "base")):
        try:
            value = read_json(folder / file)
            for key in keys:
                value = value[key]
            return str(value)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return ""
