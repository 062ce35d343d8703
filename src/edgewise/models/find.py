"""Where a model's files are: embedded in an installed package, in a folder, or on the Hugging Face hub."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.schema import parse_json
from edgewise.models.hub import ANY_HUB, HubOptions, download_file, download_twin
from edgewise.models.registry import embedded, embedded_models

AUTHORS_FILE = "final.pth"
"""The paper's authors publish a nanoGPT state dict under this name, without a config."""


@dataclass(frozen=True)
class ModelFiles:
    """A model's files. A hub repository has no folder until its files are needed."""

    name: str
    folder: Path | None
    config: dict[str, Any] | None
    """The content of config.json; None for the authors' layout."""
    hub: HubOptions = ANY_HUB

    @property
    def address(self) -> str:
        """What `from_pretrained` takes."""
        return self.name if self.folder is None else str(self.folder)

    def file(self, name: str) -> Path | None:
        """One file, downloaded if need be, or None if the model has none of that name."""
        if self.folder is not None:
            return self.folder / name if (self.folder / name).is_file() else None
        return download_file(self.name, name, self.hub)

    def download(self) -> Path:
        """The folder of a twin, downloaded if need be."""
        return download_twin(self.name, self.hub) if self.folder is None else self.folder


def find_model(name: str | Path, hub: HubOptions = ANY_HUB) -> ModelFiles:
    """Look a model up by embedded name, path or hub name. Nothing but its config is read."""
    name = str(name)
    if (model := embedded(name)) is not None:
        folder = model.folder
        if model.make_folder is not None and not folder.is_dir():
            model.make_folder(folder)
    else:
        folder = _path(name)
        if folder.is_file() and folder.name == AUTHORS_FILE:
            folder = folder.parent
    if folder.is_dir():
        folder /= hub.subfolder
        config = folder / "config.json"
        if not config.is_file() and not (folder / AUTHORS_FILE).is_file():
            if (folder / "adapter_config.json").is_file():
                raise EdgewiseError(
                    f"{folder} holds a PEFT adapter, not a model; open both with AutoModelForCausalLM.from_pretrained"
                )
            raise EdgewiseError(f"{folder} is not a model folder: it has no config.json")
        return ModelFiles(name, folder, _read_config(config) if config.is_file() else None, hub)
    if folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise EdgewiseError(
            f"no model at {name}: give a folder, a Hugging Face name, or one of: {', '.join(embedded_models())}"
        )
    path = download_file(name, "config.json", hub)
    if path is None and download_file(name, AUTHORS_FILE, hub) is None:
        raise EdgewiseError(f"the hub repository {name} holds no config.json: it is not a model")
    return ModelFiles(name, None, None if path is None else _read_config(path), hub)


def _path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        path.exists()
    except (RuntimeError, OSError, ValueError) as error:  # no such user, a name too long, a null byte
        raise EdgewiseError(f"no model at {name[:80]}: {first_line(error)}") from error
    return path


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"), _special_float)
    except (ValueError, OSError, RecursionError) as error:
        raise EdgewiseError(f"{path} cannot be read as JSON: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise EdgewiseError(f"{path} is not a model config")
    return content


def _special_float(content: dict[str, Any]) -> Any:
    """The number that transformers 5 writes as an object, such as {"__float__": "Infinity"}."""
    if content.keys() == {"__float__"} and content["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(content["__float__"])
    return content
