"""`edgewise --help` and `edgewise COMMAND --help`: flags in groups, the basics first, from signatures and docstrings."""

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tyro

from edgewise.cli.flags import name_flags

Command = Callable[..., None]

_INDENT, _WIDEST = 26, 110
_GROUPS = {
    "figures": {"caption", "query_axis", "columns", "narrow", "colour_bar", "values", "mark", "plot", "colour_heads"},
    "where and in which precision": {"device", "dtype", "max_memory"},
}  # fmt: skip
_BASICS = (
    "prompt", "task", "tasks", "data", "heads", "features", "layer", "feature", "tokens", "minutes", "density", "tolerance",
    "scale", "patch_from", "logit", "key", "transcoder", "transcoders", "circuit", "out", "open", "json", "resume",
)  # fmt: skip
"""The flags that most runs need, in this order; what a command must be given is among them too."""
_METAVARS = {
    "prompt": "TEXT", "patch_from": "TEXT", "logit": "TOKEN", "heads": "L5H1,L0H0", "features": "L0/312",
    "mark": "QUERY,KEY", "task": "TASK", "key": "POSITION", "data": "DATA ...", "valid": "DATA ...", "model": "MODEL",
}  # fmt: skip


class _Flag(NamedTuple):
    name: str
    """Of the parameter, or of the config's field."""
    hint: Any
    default: Any
    """`MISSING` if it must be given."""
    text: str


def command_help(name: str, command: Command, description: str, flags: Mapping[str, str]) -> str:
    """The help of one command. `flags`: of each argument of the library, which texts name in backquotes."""
    width = _width()
    positional, others = _split(command)
    optional = "[OPTIONS] " if others else ""
    usage = f"usage: edgewise {name} {optional}{' '.join(_usage(flag) for flag in positional)}"
    named = {flag.name: flag for flag in others}
    basics = [flag for flag in others if flag.default is MISSING]
    basics += [named[name] for name in _BASICS if name in named and named[name] not in basics]
    groups = {"arguments": positional, "basics": basics}
    special = set().union(*_GROUPS.values())
    groups["more"] = [flag for flag in others if flag not in basics and flag.name not in special]
    for title, names in _GROUPS.items():
        groups[title] = [flag for flag in others if flag.name in names and flag not in basics]
    lines = [usage.rstrip(), "", *(_wrapped(line, width) for line in description.splitlines())]
    for title, members in groups.items():
        if members:
            lines += ["", f"{title}:", *(_entry(flag, width, flag in positional) for flag in members)]
    return name_flags("\n".join(lines), dict(flags))


def overview(description: str, groups: Mapping[str, Mapping[str, str]]) -> str:
    """The help of `edgewise` itself: the first sentence of each command, in groups."""
    lines = ["usage: edgewise COMMAND ...", "", description]
    for title, commands in groups.items():
        lines += ["", f"{title}:"]
        for name, text in commands.items():
            lines.append(_two_columns(name, text, _width(), 14))
    return "\n".join(lines)


def _split(command: Command) -> tuple[list[_Flag], list[_Flag]]:
    """Positional arguments, and flags: keywords of the command and fields of its config dataclasses."""
    positional, flags = [], []
    hints, documented = get_type_hints(command, include_extras=True), _parameter_texts(command)
    for name, parameter in inspect.signature(command).parameters.items():
        hint, default = hints[name], parameter.default
        base = _bare(hint)
        if is_dataclass(base):
            flags += _fields(base, None if default is inspect.Parameter.empty else default)
            continue
        flag = _Flag(name, hint, MISSING if default is inspect.Parameter.empty else default, documented[name])
        (positional if tyro.conf.Positional in getattr(hint, "__metadata__", ()) else flags).append(flag)
    return positional, flags


def _fields(config: Any, defaults: Any) -> Iterator[_Flag]:
    hints, documented = get_type_hints(config, include_extras=True), field_texts(config)
    for field in fields(config):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        yield _Flag(
            field.name,
            hints[field.name],
            default if defaults is None else getattr(defaults, field.name),
            documented[field.name],
        )


def field_texts(config: type) -> dict[str, str]:
    """The string below each field of a config, as one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(config))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for statement, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            texts[statement.target.id] = " ".join(str(after.value.value).split()) if is_text else ""  # pyright: ignore
    return texts


def _parameter_texts(command: Command) -> dict[str, str]:
    """The lines of `Args` in a command's docstring."""
    _, _, arguments = inspect.cleandoc(command.__doc__ or "").partition("Args:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _entry(flag: _Flag, width: int, positional: bool) -> str:
    left = _metavar(flag) if positional else _spelled(flag)
    return _two_columns(left, f"{flag.text}{_state(flag)}", width, _INDENT)


def _two_columns(left: str, text: str, width: int, indent: int) -> str:
    lines = textwrap.wrap(text, width - indent, break_long_words=False, break_on_hyphens=False)
    first = f"  {left}"
    if len(first) + 2 > indent:
        return "\n".join([first, *(" " * indent + line for line in lines)])
    return "\n".join(
        [f"{first:<{indent}}{lines[0] if lines else ''}", *(" " * indent + line for line in lines[1:])]
    )


def _wrapped(line: str, width: int) -> str:
    """A paragraph in lines of the terminal's width; examples stay as they are."""
    return line if line.startswith(" ") else textwrap.fill(line, width, break_on_hyphens=False)


def _spelled(flag: _Flag) -> str:
    dashed = flag.name.replace("_", "-")
    if _bare(flag.hint) is bool:
        return f"--no-{dashed}" if flag.default is True else f"--{dashed}"
    return f"--{dashed} {_metavar(flag)}"


def _usage(flag: _Flag) -> str:
    metavar = _metavar(flag)
    return metavar if flag.default is MISSING else f"[{metavar}]"


def _state(flag: _Flag) -> str:
    """What holds if the flag is not given."""
    if flag.default is MISSING:
        return " (required)"
    if flag.default is None or flag.default == () or isinstance(flag.default, bool):
        return " (default: yes)" if flag.default is True else ""
    shown = repr(flag.default) if isinstance(flag.default, str) and " " in flag.default else str(flag.default)
    return f" (default: {shown})"


def _metavar(flag: _Flag) -> str:
    for note in getattr(flag.hint, "__metadata__", ()):
        if metavar := getattr(note, "metavar", None):
            return metavar
    if flag.name in _METAVARS:
        return _METAVARS[flag.name]
    base = _bare(flag.hint)
    if get_origin(base) is Literal:
        return "{" + ",".join(map(str, get_args(base))) + "}"
    if get_origin(base) is tuple:
        return f"{_word(_bare(get_args(base)[0]))} ..."
    return _word(base)


def _word(base: Any) -> str:
    return {int: "N", float: "X", Path: "PATH", str: "TEXT"}.get(base, "VALUE")


def _bare(hint: Any) -> Any:
    """The type without annotations and without None."""
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif get_origin(hint) in (Union, UnionType):
            (hint,) = [part for part in get_args(hint) if part is not type(None)]
        else:
            return hint


def _width() -> int:
    return min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
