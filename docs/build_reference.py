"""Write docs/reference.md, the reference of the public API, from signatures and docstrings.

python docs/build_reference.py           # write it
python docs/build_reference.py --check   # fail if it is not up to date (part of the tests)
"""

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import edgewise
from edgewise.cli.help import field_texts

TARGET = Path(__file__).parent / "reference.md"
SECTIONS = {
    "Models and gates": ("models", "gating"),
    "Compare": ("comparison",),
    "Sparsify": ("training.sparsify", "planning"),
    "Measure": ("measure",),
    "Tasks and circuits": ("tasks", "circuits"),
    "Attention maps and flow": ("maps", "flow"),
    "Transcoders and traces": ("training.transcoder", "tracing"),
    "Figures and report": ("plots", "reporting"),
    "Errors": ("core",),
}


def reference() -> str:
    """The whole document."""
    public = {name: getattr(edgewise, name) for name in edgewise.__all__}
    parts = [
        "# API reference\n\nGenerated from docstrings by `python docs/build_reference.py`. Everything is in the "
        "namespace `edgewise`.\n"
    ]
    for title, packages in SECTIONS.items():
        prefixes = tuple(f"edgewise.{package}." for package in packages)
        names = sorted(
            (name for name, thing in public.items() if thing.__module__.startswith(prefixes)), key=str.lower
        )
        parts += [f"## {title}\n", *(entry(name, public.pop(name)) for name in names)]
    if public:
        raise SystemExit(f"no section for {', '.join(public)}")
    return "\n".join(parts)


def entry(name: str, thing: Any) -> str:
    """A function with its signature; a class with its fields and public methods."""
    lines = [f"### `{name}`\n"]
    if inspect.isclass(thing):
        lines += [text(thing.__doc__), *fields(thing), *methods(thing)]
    else:
        lines += [f"```python\n{name}{signature(thing)}\n```\n", text(thing.__doc__)]
    return "\n".join(lines)


def signature(function: Any) -> str:
    """Without annotations of the package's own long types, which the docstring explains."""
    shown = re.sub(r"<object object at 0x[0-9a-f]+>", "...", str(inspect.signature(function)))
    shown = re.sub(
        r"\b(?:edgewise|transformers|torch|collections|pathlib|matplotlib)(?:\.\w+)*\.(\w+)", r"\1", shown
    )
    return re.sub(r"'([\w\[\], |.]+)'", r"\1", shown) if " -> '" in shown else shown


def fields(cls: type) -> list[str]:
    """The fields of a dataclass as a table."""
    if not dataclasses.is_dataclass(cls):
        return []
    documented = field_docstrings(cls)
    rows = [
        f"| `{field.name}` | {default(field)} | {documented.get(field.name, '')} |"
        for field in dataclasses.fields(cls)
    ]
    return ["| field | default | |", "|---|---|---|", *rows, ""] if any(documented.values()) else []


def default(field: Any) -> str:
    if field.default is dataclasses.MISSING:
        return ""
    shown = field.default.as_posix() if isinstance(field.default, Path) else repr(field.default)
    return f"`{shown}`".replace("|", "\\|")


def field_docstrings(cls: type) -> dict[str, str]:
    """The string below each field, as the help of the command line shows it."""
    return {name: words.replace("|", "\\|") for name, words in field_texts(cls).items()}


def methods(cls: type) -> list[str]:
    """Public methods and properties that the class itself defines, a line each."""
    lines = []
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        first = " ".join(function.__doc__.split("\n\n")[0].split())
        shown = name if isinstance(member, property) else f"{name}{signature(function)}"
        lines.append(f"- `.{shown}`: {first}")
    return [*lines, ""] if lines else []


def text(docstring: str | None) -> str:
    """A docstring as Markdown: examples as code, arguments as a list."""
    plain = inspect.cleandoc(docstring or "")
    plain = re.sub(
        r"((?:^>>> .*\n?)+)",
        lambda m: "```python\n" + m[1].rstrip("\n") + "\n```\n",
        plain,
        flags=re.MULTILINE,
    )
    plain, _, arguments = plain.partition("Args:\n")
    items = re.sub(r"^    (\w+): ", r"- `\1`: ", arguments, flags=re.MULTILINE)
    items = re.sub(r"\n\s{8,}", " ", items)
    return f"{plain.rstrip()}\n\n{items}".rstrip() + "\n"


if __name__ == "__main__":
    written = reference()
    if "--check" not in sys.argv:
        TARGET.write_text(written)
    elif TARGET.read_text() != written:
        raise SystemExit("docs/reference.md is not up to date: run python docs/build_reference.py")
