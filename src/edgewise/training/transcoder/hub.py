"""Transcoders in folders and on the hub: what `Transcoder.from_pretrained`, `.save_pretrained` and `.push_to_hub` do."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgewise.core.devices import dtype_of, one_device
from edgewise.core.errors import EdgewiseError
from edgewise.core.files import is_folder
from edgewise.models.hub import HubOptions, download_file
from edgewise.models.publish import upload
from edgewise.training.transcoder.card import write_card
from edgewise.training.transcoder.store import CONFIG, WEIGHTS, load_transcoder, save_transcoder
from edgewise.training.transcoder.transcoder import Transcoder


def from_pretrained(
    name: str | Path,
    model: nn.Module | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | torch.device | dict[str, Any] | None = None,
    **hub: Any,
) -> Transcoder:
    """A transcoder by folder or hub name, in a precision and on one device if these are given."""
    options = HubOptions(**hub)
    precision, device = (
        dtype_of(dtype),
        one_device(device_map, "a transcoder"),
    )  # refused before anything is downloaded
    transcoder = load_transcoder(_folder(name, options), model)
    return transcoder.to(device=device, dtype=precision)


def _folder(name: str | Path, options: HubOptions) -> Path:
    """Where the files are, downloaded if need be."""
    folder = Path(name).expanduser()
    if is_folder(folder):
        return folder / options.subfolder
    files = [download_file(str(name), file, options) for file in (CONFIG, WEIGHTS)]
    if files[0] is None or files[1] is None:
        raise EdgewiseError(
            f"{name} holds no transcoder: there is no {CONFIG if files[0] is None else WEIGHTS}"
        )
    return files[0].parent


def save_pretrained(transcoder: Transcoder, folder: str | Path, name: str | None = None) -> Path:
    """Write a transcoder and its model card."""
    folder = save_transcoder(transcoder, folder)
    write_card(folder, transcoder.config, name)
    return folder


def push_to_hub(transcoder: Transcoder, repo_id: str, **options: Any) -> str:
    """Upload a transcoder with its model card."""
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(transcoder, folder, repo_id)
        return upload(folder, repo_id, options.pop("commit_message", "Upload transcoder"), **options)
