"""The Hugging Face hub, or its local cache where it cannot be reached."""

from functools import cache
from pathlib import Path

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

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models.registry import embedded_models

TWIN_FILES = ["*.json", "twin*"]


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


def download_twin(repo: str) -> Path:
    """The folder of a twin's files."""
    try:
        return Path(
            snapshot_download(repo, allow_patterns=TWIN_FILES, local_files_only=not hub_is_reachable())
        )
    except Exception as error:  # whatever the transport raises
        raise EdgewiseError(f"cannot get {repo} from the hub: {first_line(error)}") from error


def download_file(repo: str, file: str) -> Path | None:
    """One file of a repository, or None if it has none of that name."""
    names = ", ".join(embedded_models())
    try:
        return Path(hf_hub_download(repo, file, local_files_only=not hub_is_reachable()))
    except LocalEntryNotFoundError as error:  # offline and not in the cache; a kind of EntryNotFoundError
        raise EdgewiseError(
            f"{repo} is neither a folder nor in the local cache, and the hub cannot be reached; offline there are: {names}"
        ) from error
    except EntryNotFoundError:
        return None
    except GatedRepoError as error:
        raise EdgewiseError(
            f"{repo} is gated: accept its licence on the hub and log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise EdgewiseError(
            f"no model named {repo}: not a folder, not on the hub, not one of {names}"
        ) from error
    except (OfflineModeIsEnabled, HFValidationError, HfHubHTTPError, OSError) as error:
        raise EdgewiseError(f"cannot get {repo} from the hub: {first_line(error)}") from error
