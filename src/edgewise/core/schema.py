"""Saved results, read back: JSON of a bounded size that is validated field by field, and arrays."""

import json
import re
from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from edgewise.core.errors import EdgewiseError, first_line

if TYPE_CHECKING:
    import numpy as np
    from pydantic import TypeAdapter, ValidationError

Schema = TypeVar("Schema")
MAX_BYTES = 1 << 29
"""Of a JSON file: half a gigabyte. The largest that edgewise writes, a trace with all links, has some ten megabytes."""


_HUGE = re.compile(rb"[:,\[]\s*-?\d{301}")
"""A whole number that no float holds."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """`json.loads` that raises a ValueError for text which cannot be written again: half of a surrogate pair, `"\\ud800"`.

    Python reads it, and whatever prints, logs or sends it later fails.
    """
    content = json.loads(text, object_hook=object_hook)
    if _SURROGATE.search(text):
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(f"it holds \\u{ord(half):x}, half of a pair, which is no character") from error
    return content


def read_json(path: str | Path, what: str = "result", *, max_bytes: int = MAX_BYTES) -> Any:
    """The content of a JSON file that is regular, not too large and not nested too deeply."""
    return read_as(Any, path, what, max_bytes=max_bytes)


def read_as(
    schema: type[Schema] | Any,
    path: str | Path,
    what: str = "result",
    *,
    max_bytes: int = MAX_BYTES,
    writer: str = "edgewise",
) -> Schema:
    """Read a JSON file as a dataclass or any other type. An error names the file and the field that is wrong.

    Args:
        schema: Fields with their types; values are not converted, unknown fields are left out.
        path: The file.
        what: What the file should hold, for the error.
        max_bytes: Largest file that is read.
        writer: Who writes such files, for the error.
    """
    from pydantic import ValidationError  # takes a tenth of a second

    path = Path(path)
    content = _read_bytes(path, what, max_bytes)
    if _HUGE.search(content):
        raise EdgewiseError(f"{path} holds no {what} that edgewise wrote: a number has more than 300 digits")
    try:
        return _adapter(schema).validate_json(content, strict=True)
    except ValidationError as error:
        raise EdgewiseError(f"{path} holds no {what} that {writer} wrote: {_described(error)}") from error
    except RecursionError as error:
        raise EdgewiseError(f"{path} holds no {what} that {writer} wrote: it is nested too deeply") from error


@cache
def _form(cls: type, without: frozenset[str], other: frozenset[tuple[str, Any]]) -> type:
    hints, types = get_type_hints(cls, include_extras=True), dict(other)
    form: list[Any] = []
    for item in fields(cls):
        if item.name not in without:
            default = field(default=item.default, default_factory=item.default_factory, kw_only=True)  # pyright: ignore
            form.append((item.name, types.get(item.name, hints[item.name]), default))
    return make_dataclass(cls.__name__, form)


def saved_form(cls: type, *without: str, **types: Any) -> type:
    """A dataclass with the fields of `cls` as they are saved in JSON.

    Args:
        cls: A dataclass.
        without: Fields that are not in the JSON file.
        types: Those that have another type there.
    """
    return _form(cls, frozenset(without), frozenset(types.items()))


def read_json_lines(
    path: str | Path, what: str = "log", *, max_bytes: int = MAX_BYTES
) -> list[dict[str, Any]]:
    """The lines of a JSONL file. The last one may be cut off, as a kill leaves it."""
    path = Path(path)
    lines = _read_bytes(path, what, max_bytes).decode(errors="replace").splitlines()
    contents = []
    for number, line in enumerate(lines, 1):
        try:
            content = parse_json(line)
            if not isinstance(content, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            if number == len(lines) and contents:
                break
            raise EdgewiseError(
                f"{path}, line {number}: not a line of a {what}: {first_line(error)}"
            ) from error
        contents.append(content)
    return contents


def read_text(path: str | Path, what: str, *, max_bytes: int = MAX_BYTES) -> str:
    """A text file that is regular and not too large, in UTF-8."""
    path = Path(path)
    try:
        return _read_bytes(path, what, max_bytes, "cannot be read").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EdgewiseError(f"{path} is not a text file: it is not UTF-8") from error


def read_arrays(path: str | Path, what: str = "result") -> dict[str, "np.ndarray"]:
    """All arrays of a safetensors file."""
    from safetensors import SafetensorError  # imports numpy: `edgewise --help` need not wait for it
    from safetensors.numpy import load_file

    path = Path(path)
    _check_regular(path, what)
    try:
        return load_file(path)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise EdgewiseError(f"{path} holds no {what} that edgewise wrote: {first_line(error)}") from error


def _read_bytes(path: Path, what: str, max_bytes: int, otherwise: str = "") -> bytes:
    size = _check_regular(path, what, otherwise)
    if size > max_bytes:
        raise EdgewiseError(
            f"{path} is too large for a {what}: {size:,} bytes, at most {max_bytes:,} are read"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise EdgewiseError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error


def _check_regular(path: Path, what: str, otherwise: str = "") -> int:
    """The size of a regular file. A pipe would be waited for, a device may have no end."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise EdgewiseError(
            f"{path} {otherwise or f'holds no {what} that edgewise wrote'}: {reason}"
        ) from error
    if not path.is_file():
        raise EdgewiseError(f"{path} is not a file with a {what}")
    return size


@cache
def _adapter(schema: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # takes a tenth of a second

    return TypeAdapter(schema)


def _described(error: "ValidationError") -> str:
    """The first field that is wrong, and how."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field_path = ""
    for step in first["loc"]:
        field_path += f"[{step}]" if isinstance(step, int) else f".{step}" if field_path else str(step)
    message = first["msg"][:1].lower() + first["msg"][1:]
    others = error.error_count() - 1
    more = f", and {others} more" if others else ""
    return f"{field_path + ': ' if field_path else ''}{message}{more}".splitlines()[0][:300]
