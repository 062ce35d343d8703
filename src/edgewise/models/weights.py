"""Weight files of a folder: which there are, and what is in them."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from edgewise.core.errors import EdgewiseError


def weight_files(name: str, folder: Path, file: str) -> list[Path]:
    """The one weight file, or the shards that its index lists; none may be missing."""
    index = folder / f"{file}.index.json"
    try:
        shards = (
            sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else [file]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EdgewiseError(f"{name}: {index.name} is damaged; copy or download it again") from error
    for shard in shards:
        if not (folder / shard).is_file():
            raise EdgewiseError(f"{name}: {shard} is missing from the folder")
    return [folder / shard for shard in shards]


def read_weights(name: str, folder: Path, file: str) -> dict[str, Tensor]:
    """All tensors of a weight file, or of its shards."""
    state: dict[str, Tensor] = {}
    for path in weight_files(name, folder, file):
        try:
            state |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise EdgewiseError(
                f"{name}: {path.name} is truncated or damaged ({error}); copy or download it again"
            ) from error
    return state


def check_finite(name: str, weights: dict[str, Tensor]) -> None:
    """Refuse weights that hold NaN or infinity."""
    for key, weight in weights.items():
        if not torch.isfinite(weight).all():
            raise EdgewiseError(
                f"{name}: {key} holds NaN or infinity; the checkpoint is damaged or its training diverged"
            )
