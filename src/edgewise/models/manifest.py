"""The manifest of a twin's folder: what its files held when it was saved, so that edits and damage are noticed.

Weights alone do not say what they belong to: with another gate, or without some of its LoRA factors, a twin is another model
and quietly wrong. The manifest lists gate, host, and of each weight file the size, a checksum and its tensors. Tokenizer and
generation config are not in it: they may be edited.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from edgewise.core.errors import EdgewiseError, first_line, shorten
from edgewise.core.schema import read_as
from edgewise.models.twin_format import ADAPTERS_KEY, MANIFEST_KEY, TWIN_KEY

FLOATS = {"F16", "BF16", "F32", "F64"}
"""The dtypes of a twin's weights; others would have to be converted."""
_FREE_TO_EDIT = ("base",)
"""What may be changed of `adapters`: where the base model is. It is recognised by its digest."""
MAX_BYTES = 1 << 26
MAX_QUOTED = 120


@dataclass(frozen=True)
class TensorEntry:
    dtype: str
    """As safetensors writes it: F32."""
    shape: list[int]


@dataclass(frozen=True)
class FileEntry:
    size: int
    """Bytes."""
    sha256: str
    tensors: dict[str, TensorEntry]


@dataclass(frozen=True)
class Manifest:
    gate: dict[str, Any]
    host: str
    """SHA-256 of the host's config."""
    adapters: dict[str, Any] | None
    """Scale, dtype and digest of the base model of LoRA factors."""
    files: dict[str, FileEntry]

    @property
    def shapes(self) -> dict[str, TensorEntry]:
        """All tensors, over all files."""
        return {key: entry for file in self.files.values() for key, entry in file.tensors.items()}


def make_manifest(config: dict[str, Any], files: dict[str, Path]) -> Manifest:
    """The manifest of a twin with this config.json, whose weight files have these names."""
    twin = config[TWIN_KEY]
    entries = {
        name: FileEntry(path.stat().st_size, _checksum(path), read_header(path))
        for name, path in files.items()
    }
    return Manifest(twin["gate"], _digest(twin["host"]), _adapters(twin), entries)


def to_json(manifest: Manifest) -> dict[str, Any]:
    return asdict(manifest)


def check_manifest(name: str, folder: Path, config: dict[str, Any], checksums: bool = True) -> Manifest:
    """Refuse a twin's folder that is not as it was saved; `checksums=False` compares sizes and headers only, in no time."""
    twin = config[TWIN_KEY]
    manifest = _read(name, folder, twin.get(MANIFEST_KEY))
    advice = _advice(folder)
    for what, now, saved in (
        ("gate", twin["gate"], manifest.gate),
        (ADAPTERS_KEY, _adapters(twin), manifest.adapters),
    ):
        if now != saved:
            raise EdgewiseError(f"{name}: config.json says {_difference(what, now, saved)}; {advice}")
    if _digest(twin["host"]) != manifest.host:
        raise EdgewiseError(
            f"{name}: the host's config in config.json is not the one that was saved; {advice}"
        )
    for file, entry in manifest.files.items():
        _check_file(name, folder / file, entry, checksums, advice)
    return manifest


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Dtype and shape of each tensor of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            return {
                key: TensorEntry(part.get_dtype(), list(part.get_shape())) for key, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise EdgewiseError(
            f"{path.parent}: {path.name} is truncated or damaged ({first_line(error)}); copy or download it again"
        ) from error


def check_dtypes(name: str, tensors: dict[str, TensorEntry]) -> None:
    """Refuse integers, booleans and floats of eight bits."""
    for key, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            raise EdgewiseError(
                f"{name}: {key} has dtype {tensor.dtype}; a twin's weights are {', '.join(sorted(FLOATS))}"
            )


def _read(name: str, folder: Path, file: Any) -> Manifest:
    if file is None:
        raise EdgewiseError(
            f"{name} has no manifest of its files: it was edited, or written by an older edgewise; {_advice(folder)}"
        )
    if not isinstance(file, str) or not is_plain_name(file):
        raise EdgewiseError(f"{name}: config.json names no manifest in its folder; copy or download it again")
    if not (folder / file).is_file():
        raise EdgewiseError(f"{name}: {file} is missing from the folder; {_advice(folder)}")
    manifest = read_as(Manifest, folder / file, "manifest of a twin", max_bytes=MAX_BYTES)
    if not manifest.files or not all(map(is_plain_name, manifest.files)):
        raise EdgewiseError(f"{name}: {file} lists no files of the folder; {_advice(folder)}")
    return manifest


def is_plain_name(name: str) -> bool:
    """Whether a name stays inside its folder."""
    return name == Path(name).name and name not in ("", ".", "..") and "\0" not in name and "\\" not in name


def _check_file(name: str, path: Path, entry: FileEntry, checksums: bool, advice: str) -> None:
    if not path.is_file():
        raise EdgewiseError(f"{name}: {path.name} is missing from the folder")
    tensors = read_header(path)
    if lost := entry.tensors.keys() ^ tensors.keys():
        verb = "lacks" if min(lost) in entry.tensors else "holds an unknown"
        raise EdgewiseError(f"{name}: {path.name} {verb} {_quoted(min(lost))}; {advice}")
    if changed := [key for key, tensor in tensors.items() if tensor != entry.tensors[key]]:
        key = min(changed)
        now, saved = tensors[key], entry.tensors[key]
        was = _quoted(f"{saved.dtype} {saved.shape}")
        raise EdgewiseError(
            f"{name}: {_quoted(key)} is {now.dtype} {now.shape}, and was saved as {was}; {advice}"
        )
    if path.stat().st_size != entry.size or (checksums and _checksum(path) != entry.sha256):
        raise EdgewiseError(f"{name}: {path.name} is not the file that was saved; {advice}")


def _difference(what: str, now: Any, saved: Any) -> str:
    if isinstance(now, dict) and isinstance(saved, dict):
        for key in sorted(now.keys() | saved.keys()):
            if now.get(key) != saved.get(key):
                now, saved, what = now.get(key), saved.get(key), f"{what}: {_quoted(key)}"
                break
    return f"{what} = {_quoted(repr(now))}, the twin was saved with {_quoted(repr(saved))}"


def _quoted(text: str) -> str:
    """What a file says, in a sentence of bounded length."""
    return shorten(text, MAX_QUOTED)


def _advice(folder: Path) -> str:
    return (
        "copy or download it again; if the edit is meant, load it with `verify=False`, or accept it with "
        f"`edgewise info {folder} --accept-edits`"
    )


def _adapters(twin: dict[str, Any]) -> dict[str, Any] | None:
    adapters = twin.get(ADAPTERS_KEY)
    if not isinstance(adapters, dict):
        return adapters
    return {key: value for key, value in adapters.items() if key not in _FREE_TO_EDIT}


def _digest(host: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(host, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
