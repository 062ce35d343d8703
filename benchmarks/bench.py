"""Edgewise beside what one would use otherwise; writes docs/benchmarks.md.

    make bench                            # sets up the rivals' environment first; some 20 minutes
    python benchmarks/bench.py --quick --out /tmp/page.md   # tiny sizes: does everything run?
    python benchmarks/bench.py --only attention             # measure some sections again, the others stay

Rivals run in an environment of their own (`make peers`). One that is not there, or fails, gets a row that says so.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import tyro
from page import machine, page, renewed, table
from peers import Environment, say
from sections import Sizes, gated_attention, head_patching, training_step, twin_elsewhere

TINY = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 50}
QUICK = Sizes(layers=1, heads=2, prompts=2, lengths=(128,), steps={"tiny": (TINY, 1, 1)})


@dataclass(frozen=True)
class Bench:
    """Edgewise beside what one would use otherwise."""

    out: Path = Path("docs/benchmarks.md")
    peer: str = ".venv-peer/bin/python"
    """The python of an environment that has the rivals."""
    quick: bool = False
    """Tiny sizes, to see that everything runs; the figures mean nothing."""
    only: tuple[Literal["patching", "attention", "step", "elsewhere"], ...] = ()
    """Sections to measure again; all if not given."""


def main(options: Bench) -> None:
    began = time.perf_counter()
    sizes, rivals = QUICK if options.quick else Sizes(), Environment(options.peer)
    sections = []
    measurements = {
        "patching": partial(head_patching, sizes, rivals),
        "attention": partial(gated_attention, sizes),
        "step": partial(training_step, sizes),
        "elsewhere": partial(twin_elsewhere, rivals),
    }
    for name in options.only or measurements:
        sections.append(measurements[name]())
        print(f"\n{sections[-1].title}\n\n{table(sections[-1].header, sections[-1].rows)}\n", flush=True)
    if options.only:
        how = f"Measured again by `python benchmarks/bench.py --only {' '.join(options.only)}`: {machine()}."
        options.out.write_text(renewed(options.out.read_text(), how, sections))
        return
    command = "python benchmarks/bench.py --quick" if options.quick else "make bench"
    how = (
        f"Written by `{command}` in {(time.perf_counter() - began) / 60:.0f} minutes, not by hand.\n{machine()}.\n"
        "Timings on a shared machine vary; within a table, what is compared took turns."
    )
    if options.quick:
        how += " **Tiny sizes: the figures mean nothing.**"
    options.out.write_text(page(how, sections))
    say(f"written: {options.out}")


if __name__ == "__main__":
    main(tyro.cli(Bench))
