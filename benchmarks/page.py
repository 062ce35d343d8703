"""Figures as a page of Markdown that says where they come from."""

import os
import platform
from collections.abc import Sequence
from typing import NamedTuple

import torch
import transformers

import edgewise


class Section(NamedTuple):
    """A table, and what it shows."""

    title: str
    text: str
    """What was measured, and how."""
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are numbers. A row may stop early: a rival that is missing has no figures."""
    full = [[*row, *[""] * (len(header) - len(row))] for row in rows]
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *full]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """What kind of machine this is, without its name."""
    # a process may be held to fewer cores than there are
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kind = f"{platform.machine()} with {torch.backends.cpu.get_cpu_capability()}"  # AVX2, AVX512, ...
    versions = {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "edgewise": edgewise.__version__,
    }
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{cores} cores, {kind}, {torch.get_num_threads()} threads; {named}"


def page(how: str, sections: Sequence[Section]) -> str:
    return "\n\n".join([f"# Benchmarks\n\n{how}", *map(_markdown, sections)]) + "\n"


def _markdown(section: Section) -> str:
    return f"## {section.title}\n\n{section.text.strip()}\n\n{table(section.header, section.rows)}"


def renewed(written: str, how: str, sections: Sequence[Section]) -> str:
    """A page with some sections measured again, each of which says how; the others stay as they are."""
    head, *parts = written.rstrip("\n").split("\n\n## ")
    new = {s.title: _markdown(s._replace(text=f"{s.text.strip()}\n\n{how}")) for s in sections}
    kept = [new.get(part.split("\n")[0], f"## {part}") for part in parts]
    return "\n\n".join([head, *kept]) + "\n"
