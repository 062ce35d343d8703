"""Upload twins and transcoders to the Hugging Face hub, each with its model card."""

import re
import tempfile
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models.card import CARD, is_generated, write_card
from edgewise.models.save import save_twin


def push_twin(
    model: PreTrainedModel,
    repo_id: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    max_shard_size: int | str = "50GB",
    tags: list[str] | None = None,
) -> str:
    """Stand in for `push_to_hub` on a gated model: its arguments, and the tokenizer. Gives the address of the commit."""
    with tempfile.TemporaryDirectory() as folder:
        save_twin(model, folder, max_shard_size=max_shard_size)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        write_card(folder, model.config.name_or_path or None, repo_id, tags)
        return upload(
            folder,
            repo_id,
            commit_message or "Upload sparse twin",
            commit_description=commit_description,
            private=private,
            token=token,
            revision=revision,
            create_pr=create_pr,
        )


def upload(
    folder: str | Path,
    repo_id: str,
    commit_message: str,
    *,
    commit_description: str | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
) -> str:
    """Upload a folder, making the repository and the branch if they are missing. A card that is there already stays."""
    api = HfApi(token=token)
    try:
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None and not create_pr and not re.match("refs/pr", revision):
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        kept = [CARD] if _has_card_of_its_own(repo_id, token, revision) else None
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message=commit_message,
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
            ignore_patterns=kept,
        )
    except HFValidationError as error:
        raise EdgewiseError(f"{repo_id!r} is no name of a hub repository; give user/name") from error
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (401, 403):
            raise EdgewiseError(
                f"the hub does not let you write to {repo_id}; log in with `hf auth login`, or pass `token`"
            ) from error
        raise EdgewiseError(f"cannot upload to {repo_id}: {first_line(error)}") from error
    return str(commit.commit_url)


def _has_card_of_its_own(repo_id: str, token: str | bool | None, revision: str | None) -> bool:
    """Whether somebody has written the card of the repository."""
    try:
        path = hf_hub_download(repo_id, CARD, token=token, revision=revision)
    except EntryNotFoundError:
        return False
    return not is_generated(Path(path).read_text(encoding="utf-8"))
