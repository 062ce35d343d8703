"""Write a twin's folder so that at every moment it holds the old twin or the new one, whole.

Weights and manifest are written under names that are not in use, `twin` or `twin2`; then config.json, which names the
manifest, is replaced in one rename. In between everything is in `.saving`, in which transformers finds no weights. After
that the new files get the usual names back as links to the same data, again with one rename of config.json.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.files import flush, folder_lock, write_json
from edgewise.core.schema import read_json
from edgewise.models.manifest import make_manifest, to_json
from edgewise.models.twin_format import CONFIG, MANIFEST_KEY, TWIN_KEY

SCRATCH = ".saving"
_SECOND = "2"
_MANIFEST = "-manifest.json"

Fill = Callable[[Path], dict[str, Any]]
"""Writes weights into an empty folder, as `STEM.safetensors` or as shards and their index, with any other files; returns the
content of config.json."""


def write_twin_folder(folder: Path, stem: str, fill: Fill) -> None:
    """Replace or make the twin in a folder. `stem` begins the names of its weight files: twin or twin-adapters."""
    with folder_lock(folder):
        scratch = folder / SCRATCH
        try:
            shutil.rmtree(scratch, ignore_errors=True)  # of a save that was killed
            scratch.mkdir()
            config = fill(scratch)
            in_use = stem_in_use(folder, stem)
            used = stem + _SECOND if in_use == stem else stem
            _remove(folder, used)  # of a save that was killed
            _publish(folder, scratch, config, stem, used)
            if in_use == stem:
                _take_usual_names(folder, stem)
            for file in scratch.iterdir():  # generation_config.json and others
                file.replace(folder / file.name)
        except OSError as error:
            raise EdgewiseError(
                f"{folder} cannot be written: {error.strerror or first_line(error)}"
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def stem_in_use(folder: Path, stem: str) -> str | None:
    """With what the names of the weight files begin that config.json points to; None if it is not a twin's."""
    try:
        twin = read_json(folder / CONFIG)[TWIN_KEY]
        manifest = twin.get(MANIFEST_KEY) or f"{stem}{_MANIFEST}"
        return str(manifest).removesuffix(_MANIFEST)
    except (EdgewiseError, KeyError, TypeError, AttributeError):
        return None


def accept_edits(folder: Path, stem: str) -> None:
    """Write a new manifest of the files that are in a twin's folder now."""
    with folder_lock(folder):
        config = read_json(folder / CONFIG)
        used = stem_in_use(folder, stem) or stem
        _commit(folder, config, used, _weights(folder, used))


def _publish(folder: Path, scratch: Path, config: dict[str, Any], stem: str, used: str) -> None:
    """Move weights from the scratch folder to their names, and have config.json point to them."""
    for file in sorted(scratch.iterdir()):
        if _belongs(file.name, stem):
            if file.name.endswith(".json"):  # the index of the shards
                file.write_text(file.read_text().replace(f'"{stem}-', f'"{used}-'))
            flush(file)
            file.replace(folder / (used + file.name[len(stem) :]))
    _commit(folder, config, used, _weights(folder, used))
    _remove(folder, stem if used != stem else stem + _SECOND)


def _take_usual_names(folder: Path, stem: str) -> None:
    """Give the files `twin2*` the names `twin*`; where there are no links they stay as they are."""
    used = stem + _SECOND
    try:
        for file in [path for path in folder.iterdir() if _belongs(path.name, used)]:
            usual = folder / (stem + file.name[len(used) :])
            if file.name.endswith(".index.json"):
                usual.write_text(file.read_text().replace(f'"{used}-', f'"{stem}-'))
            elif not file.name.endswith(_MANIFEST):
                os.link(file, usual)
    except OSError:
        return
    _commit(folder, read_json(folder / CONFIG), stem, _weights(folder, stem))
    _remove(folder, used)


def _commit(folder: Path, config: dict[str, Any], used: str, weights: list[Path]) -> None:
    """Write the manifest, then replace config.json in one rename."""
    manifest = f"{used}{_MANIFEST}"
    write_json(folder / manifest, to_json(make_manifest(config, {path.name: path for path in weights})))
    pointed = {**config, TWIN_KEY: {**config[TWIN_KEY], MANIFEST_KEY: manifest}}
    write_json(folder / CONFIG, pointed, indent=2)


def _weights(folder: Path, used: str) -> list[Path]:
    pattern = rf"{re.escape(used)}(-\d{{5}}-of-\d{{5}})?\.safetensors"
    return sorted(path for path in folder.iterdir() if re.fullmatch(pattern, path.name))


def _remove(folder: Path, stem: str) -> None:
    """Delete a twin's files whose names begin with the stem, to which config.json does not point."""
    for path in [path for path in folder.iterdir() if _belongs(path.name, stem)]:
        path.unlink(missing_ok=True)


def _belongs(name: str, stem: str) -> bool:
    """Whether a file is among those of a twin whose names begin with the stem."""
    pattern = rf"{re.escape(stem)}(-manifest\.json|(-\d{{5}}-of-\d{{5}})?\.safetensors(\.index\.json)?)"
    return re.fullmatch(pattern, name) is not None
