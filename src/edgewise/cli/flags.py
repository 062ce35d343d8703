"""Argument names of the library, shown as flags of a command.

Errors and docstrings of the library name arguments in backquotes, `batch_size`; on the command line that is --batch-size.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TextIO, get_args, get_type_hints

import tyro

_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`\s]+))?`")


def flags_of(command: Callable[..., Any]) -> dict[str, str]:
    """The flag of each argument of a command: its keyword parameters, and the fields of its config dataclass."""
    hints = get_type_hints(command, include_extras=True)
    names: list[str] = []
    for name in inspect.signature(command).parameters:
        base, *metadata = get_args(hints[name]) or (hints[name],)
        if is_dataclass(base):
            names += [field.name for field in fields(base)]
        elif tyro.conf.Positional not in metadata:
            names.append(name)
    return {name: f"--{name.replace('_', '-')}" for name in names}


def name_flags(text: str, flags: dict[str, str]) -> str:
    """Replace backquoted arguments that are flags; `edges=False` becomes --no-edges. Others stay as they are."""

    def replace(match: re.Match[str]) -> str:
        flag, value = flags.get(match[1]), match[2]
        if flag is None:
            return match[0]
        if value in (None, "True"):
            return flag
        return f"--no-{flag[2:]}" if value == "False" else f"{flag} {value}"

    return _ARGUMENT.sub(replace, text)


class FlagNames:
    """A stream that shows arguments as flags."""

    def __init__(self, stream: TextIO, flags: dict[str, str]) -> None:
        self.stream, self.flags = stream, flags

    def write(self, text: str) -> int:
        return self.stream.write(name_flags(text, self.flags))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
