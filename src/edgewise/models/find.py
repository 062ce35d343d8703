"""Where a model comes from: shipped with the package, a folder, a file, or the Hugging Face hub."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_session, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from edgewise import pocket
from edgewise.core.errors import EdgewiseError, first_line

AUTHORS_FILE = "final.pth"
"""The paper's authors publish a nanoGPT state dict under this name, without a config."""


@dataclass(frozen=True)
class Source:
    """A model's files. A hub repository has no folder until its files are needed."""

    name: str
    folder: Path | None
    config: dict[str, Any] | None  # config.json as it is; None for the authors' layout

    @property
    def address(self) -> str:
        """What `from_pretrained` takes."""
        return self.name if self.folder is None else str(self.folder)

    def file(self, name: str) -> Path | None:
        """One file, downloaded if need be, or None if the model has none of that name."""
        if self.folder is not None:
            return self.folder / name if (self.folder / name).is_file() else None
        return _from_hub(self.name, name)

    def whole_folder(self) -> Path:
        if self.folder is not None:
            return self.folder
        try:
            wanted = ["*.json", "twin*"]
            return Path(
                snapshot_download(self.name, allow_patterns=wanted, local_files_only=not hub_answers())
            )
        except Exception as error:  # whatever the transport raises
            raise EdgewiseError(f"cannot get {self.name} from the hub: {first_line(error)}") from error


def find(name: str | Path) -> Source:
    """Look a model up by shipped name, path or hub name. Nothing but its config is read."""
    name = str(name)
    if name in pocket.NAMES:
        folder = pocket.folder(name)
    else:
        folder = _path(name)
        if folder.is_file() and folder.name == AUTHORS_FILE:
            folder = folder.parent
    if folder.is_dir():
        config = folder / "config.json"
        if not config.is_file() and not (folder / AUTHORS_FILE).is_file():
            raise EdgewiseError(f"{folder} is not a model folder: it has no config.json")
        return Source(name, folder, _read(config) if config.is_file() else None)
    if folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise EdgewiseError(
            f"no model at {name}: give a folder, a Hugging Face name, or one of: {', '.join(pocket.NAMES)}"
        )
    path = _from_hub(name, "config.json")
    if path is None and _from_hub(name, AUTHORS_FILE) is None:
        raise EdgewiseError(f"the hub repository {name} holds no config.json: it is not a model")
    return Source(name, None, None if path is None else _read(path))


def _path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        path.exists()
    except (RuntimeError, OSError, ValueError) as error:  # no such user, a name too long, a null byte
        raise EdgewiseError(f"no model at {name[:80]}: {first_line(error)}") from error
    return path


@cache
def hub_answers() -> bool:
    """Asked once, so that offline work starts from the cache at once instead of after half a minute of retries."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # whatever the transport raises: no answer
        return False
    return True


def _from_hub(repo: str, file: str) -> Path | None:
    shipped = ", ".join(pocket.NAMES)
    try:
        return Path(hf_hub_download(repo, file, local_files_only=not hub_answers()))
    except LocalEntryNotFoundError as error:  # offline and not in the cache; a kind of EntryNotFoundError
        raise EdgewiseError(
            f"{repo} is neither a folder nor in the local cache, and the hub cannot be reached; offline there are: {shipped}"
        ) from error
    except EntryNotFoundError:
        return None
    except GatedRepoError as error:
        raise EdgewiseError(
            f"{repo} is gated: accept its licence on the hub and log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise EdgewiseError(
            f"no model named {repo}: not a folder, not on the hub, not one of {shipped}"
        ) from error
    except (OfflineModeIsEnabled, HFValidationError, HfHubHTTPError, OSError) as error:
        raise EdgewiseError(f"cannot get {repo} from the hub: {first_line(error)}") from error


def _read(config: Path) -> dict[str, Any]:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise EdgewiseError(f"{config} cannot be read as JSON: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise EdgewiseError(f"{config} is not a model config")
    return content
