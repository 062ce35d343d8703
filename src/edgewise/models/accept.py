"""Accept a twin that was edited by hand: `edgewise info FOLDER --accept-edits`."""

from pathlib import Path

from edgewise.core.errors import EdgewiseError
from edgewise.models.find import find_model
from edgewise.models.load import load
from edgewise.models.twin_folder import accept_edits
from edgewise.models.twin_format import TWIN_KEY, stem_of


def accept_edits_of(name: str | Path) -> Path:
    """Write a new manifest of a twin's folder, once the twin has been loaded without the old one; returns the folder."""
    files = find_model(name)
    if files.folder is None or files.config is None or TWIN_KEY not in files.config:
        raise EdgewiseError(f"{name} is no folder with a sparse twin: there are no edits to accept")
    load(name, verify=False)
    accept_edits(files.folder, stem_of(files.config))
    return files.folder
