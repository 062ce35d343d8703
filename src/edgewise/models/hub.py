"""The Hugging Face hub, or its local cache where it cannot be reached."""

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
    RevisionNotFoundError,
)

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models.registry import embedded_models

TWIN_FILES = ["*.json", "twin*"]


@dataclass(frozen=True)
class HubOptions:
    """What `from_pretrained` takes for a repository of the hub, by the same names. Folders heed `subfolder` only."""

    revision: str | None = None
    token: str | bool | None = None
    cache_dir: str | Path | None = None
    local_files_only: bool = False
    force_download: bool = False
    subfolder: str = ""

    @property
    def is_offline(self) -> bool:
        """Whether to read the local cache only."""
        return self.local_files_only or not hub_is_reachable()

    @property
    def download(self) -> dict[str, Any]:
        """Arguments of huggingface_hub's downloads."""
        return {
            "revision": self.revision,
            "token": self.token,
            "cache_dir": self.cache_dir,
            "force_download": self.force_download,
            "local_files_only": self.is_offline,
        }


ANY_HUB = HubOptions()
"""Where nothing is asked for: the main branch, the usual cache and token."""


def hub_is_reachable() -> bool:
    """Whether to ask the hub at all: offline work starts from the cache at once, not after half a minute of retries."""
    return not constants.HF_HUB_OFFLINE and _answers()


@cache
def _answers() -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # whatever the transport raises: no answer
        return False
    return True


def download_twin(repo: str, options: HubOptions) -> Path:
    """The folder of a twin's files."""
    prefix = f"{options.subfolder}/" if options.subfolder else ""
    try:
        patterns = [prefix + pattern for pattern in TWIN_FILES]
        return Path(snapshot_download(repo, allow_patterns=patterns, **options.download)) / options.subfolder
    except Exception as error:  # whatever the transport raises
        raise EdgewiseError(f"cannot get {repo} from the hub: {first_line(error)}") from error


def download_file(repo: str, file: str, options: HubOptions) -> Path | None:
    """One file of a repository, or None if it has none of that name."""
    names = ", ".join(embedded_models())
    try:
        return Path(hf_hub_download(repo, file, subfolder=options.subfolder or None, **options.download))
    except LocalEntryNotFoundError as error:  # offline and not in the cache; a kind of EntryNotFoundError
        if options.local_files_only:
            raise EdgewiseError(
                f"{repo} is not in the local cache; leave out `local_files_only` to download it"
            ) from error
        raise EdgewiseError(
            f"{repo} is neither a folder nor in the local cache, and the hub cannot be reached; offline there are: {names}"
        ) from error
    except EntryNotFoundError:
        return None
    except GatedRepoError as error:
        raise EdgewiseError(
            f"{repo} is gated: accept its licence on the hub and log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise EdgewiseError(
            f"{repo} has no revision {options.revision}: give a branch, a tag or a commit"
        ) from error
    except RepositoryNotFoundError as error:
        raise EdgewiseError(
            f"no model named {repo}: not a folder, not on the hub, not one of {names}"
        ) from error
    except (OfflineModeIsEnabled, HFValidationError, HfHubHTTPError, OSError) as error:
        raise EdgewiseError(f"cannot get {repo} from the hub: {first_line(error)}") from error
