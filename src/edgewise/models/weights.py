"""Weight files of a folder: which there are, and what is in them."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from edgewise.core.errors import EdgewiseError
from edgewise.core.schema import read_json
from edgewise.models.manifest import check_dtypes, check_manifest, is_plain_name, read_header
from edgewise.models.twin_folder import stem_in_use
from edgewise.models.twin_format import CONFIG, stem_of


def weight_files(name: str, folder: Path, file: str) -> list[Path]:
    """The one weight file, or the shards that its index lists; none may be missing, or outside of the folder."""
    index = folder / f"{file}.index.json"
    shards = [file]
    if index.is_file():
        try:
            shards = sorted(set(read_json(index, "index of shards")["weight_map"].values()))
        except (EdgewiseError, KeyError, TypeError, AttributeError) as error:
            raise EdgewiseError(f"{name}: {index.name} is damaged; copy or download it again") from error
    for shard in shards:
        if not isinstance(shard, str) or not is_plain_name(shard):
            raise EdgewiseError(f"{name}: {index.name} names {str(shard)[:80]!r}, which is not in the folder")
        if not (folder / shard).is_file():
            raise EdgewiseError(f"{name}: {shard} is missing from the folder")
    return [folder / shard for shard in shards]


def twin_files(name: str, folder: Path, verify: bool = True, checksums: bool = True) -> list[Path]:
    """The weight files of a twin, compared with its manifest; without `verify` those that are there."""
    config = read_json(
        folder / CONFIG
    )  # a caller of transformers may have changed the host's config in memory
    if verify:
        files = [folder / file for file in check_manifest(name, folder, config, checksums).files]
    else:
        stem = stem_of(config)
        files = weight_files(name, folder, f"{stem_in_use(folder, stem) or stem}.safetensors")
    for file in files:
        check_dtypes(name, read_header(file))
    return files


def read_twin_weights(name: str, folder: Path, verify: bool) -> dict[str, Tensor]:
    """All tensors of a twin."""
    state: dict[str, Tensor] = {}
    for path in twin_files(name, folder, verify):
        try:
            state |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise EdgewiseError(
                f"{name}: {path.name} is truncated or damaged ({error}); copy or download it again"
            ) from error
    return state


def refuse_overwritten_twin(name: str, folder: Path | None) -> None:
    """Refuse a dense model's config in a folder with a twin's weights: a dense model was saved over a twin."""
    if folder is not None and list(folder.glob("twin*.safetensors")):
        raise EdgewiseError(
            f"{name} holds a dense model's config and a sparse twin's weights: one was saved over the other; save them to "
            "folders of their own"
        )


def check_finite(name: str, weights: dict[str, Tensor]) -> None:
    """Refuse weights that hold NaN or infinity."""
    for key, weight in weights.items():
        if weight.device.type != "meta" and not torch.isfinite(weight).all():  # meta: offloaded to the disk
            raise EdgewiseError(
                f"{name}: {key} holds NaN or infinity; the checkpoint is damaged or its training diverged"
            )
