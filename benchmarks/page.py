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
    parts = [f"# Benchmarks\n\n{how}"]
    for section in sections:
        parts.append(f"## {section.title}\n\n{section.text.strip()}\n\n{table(section.header, section.rows)}")
    return "\n\n".join(parts) + "\n"
