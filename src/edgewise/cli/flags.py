"""Argument names of the library, shown as flags of a command.

Errors and docstrings of the library name arguments in backquotes, `batch_size`; on the command line that is --batch-size.
"""

import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TextIO, get_args, get_type_hints

import tyro

_BORDER = re.compile(r"(\x1b\[[0-9;]*m)*│(\x1b\[[0-9;]*m)*$")
_NONE = re.compile(
    r"\{None\}\|\{\[(?P<several>\w+) \[\w+ \.\.\.\]\]\}|\{None\}\|(?P<one>\S+)|\{None,(?P<choices>[^}]*\})"
)
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


@cache
def describe_flags(command: Callable[..., Any]) -> None:
    """Set the help text of each flag in its annotation: its docstring as one paragraph, arguments in it as flags.

    tyro would keep the line breaks of the source. A default of None is not named: the docstring says what happens then.
    """
    import docstring_parser  # only help needs it

    flags = flags_of(command)
    for owner, defaults in _owners(command):
        for argument in docstring_parser.parse_from_object(owner).params:
            name = argument.arg_name
            if name in flags and name in owner.__annotations__:
                text = name_flags(" ".join((argument.description or "").split()), flags)
                hint = "" if defaults.get(name, ...) is None else None
                described = tyro.conf.arg(help=text, help_behavior_hint=hint)
                owner.__annotations__[name] = Annotated[owner.__annotations__[name], described]


def _owners(command: Callable[..., Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """What documents a command's flags, and the defaults of these: the function, and the classes of its config."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(command).parameters.items()}
    yield command, defaults
    for name, hint in get_type_hints(command, include_extras=True).items():
        config = next(iter(get_args(hint)), None)
        if is_dataclass(config):
            default = config if defaults[name] is inspect.Parameter.empty else defaults[name]
            values = {field.name: getattr(default, field.name, ...) for field in fields(config)}
            yield from ((owner, values) for owner in config.__mro__ if is_dataclass(owner))  # pyright: ignore


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


class HelpText(FlagNames):
    """A stream for tyro's help: arguments as flags, paragraphs wrapped, no mention that an optional one may be None."""

    def write(self, text: str) -> int:
        lines = text.split("\n")
        return self.stream.write("\n".join(map(self._tidy, lines)))

    def _tidy(self, line: str) -> str:
        if "│" not in line:
            return _wrapped(name_flags(_NONE.sub(_metavar, line), self.flags))
        shorter = name_flags(_NONE.sub(lambda match: _metavar(match).ljust(len(match[0])), line), self.flags)
        border = _BORDER.search(shorter)
        if border is None:
            return shorter
        padding = " " * (len(line) - len(shorter))  # keeps the box straight
        return shorter[: border.start()] + padding + shorter[border.start() :]


def _metavar(match: re.Match[str]) -> str:
    """A placeholder without None, of {None}|INT, {None}|{[STR [STR ...]]} or {None,loss}."""
    if several := match["several"]:
        return f"{several} [{several} ...]"
    return match["one"] or f"{{{match['choices']}"


def _wrapped(line: str) -> str:
    """A paragraph in lines of the terminal's width; usage and examples stay as they are."""
    if line.startswith((" ", "usage:")):
        return line
    return textwrap.fill(line, shutil.get_terminal_size().columns, break_on_hyphens=False)
