"""Each stage's peak memory on a model of one's own, beside the estimate that the stage prints before it begins.

    python benchmarks/memory.py MODEL --data text.txt --lora 16

Every stage is a process of its own and does a few steps, which take as much memory as many. The first transcoder has the
features that it has by itself. Hardly trained, nearly half of them are active, and a trace would drown in them: it uses the
second, of which about as many are active as of a trained one.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

FEW = "32"


@dataclass(frozen=True)
class Memory:
    """Peak memory of each stage."""

    model: Annotated[str, tyro.conf.Positional]
    data: str
    context: int = 128
    rows: int = 4
    lora: int | None = None
    """Post-train adapters of this rank instead of all weights."""
    task: str = "ioi"
    prompts: int = 16
    prompt: str = 'The opposite of "large" is "'
    """Of the trace."""


class Used(NamedTuple):
    stage: str
    said: float | None
    """GB, before it began."""
    peak: float
    seconds: float


def run(stage: str, *arguments: str) -> Used:
    """One command, by itself."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "edgewise", stage, *arguments], stdout=log, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
        log.seek(0)
        text = log.read()
    if status:
        raise SystemExit(f"edgewise {stage} failed:\n{text[-2000:]}")
    said = re.findall(r"memory\s+about ([\d.]+) GB", text)
    unit = 2**30 if sys.platform == "darwin" else 2**20
    return Used(
        stage, max(map(float, said), default=None), used.ru_maxrss / unit, used.ru_utime + used.ru_stime
    )


def main(options: Memory) -> None:
    rows = ["--context", str(options.context), "--data", options.data]
    tokens = str(4 * options.rows * options.context)
    lora = [] if options.lora is None else ["--lora", str(options.lora)]
    print(
        "| stage | GB said before | GB at the peak | said / peak | minutes of a core |\n|---|---:|---:|---:|---:|"
    )
    with tempfile.TemporaryDirectory() as workspace:
        out = Path(workspace)
        small = ["--batch-size", str(options.rows), "--tokens", tokens]
        stages = [
            ("sparsify", options.model, *rows, *small, *lora, "--out", f"{out}/twin"),
            ("eval", options.model, *rows, "--tokens", "4096"),
            (
                "circuit",
                options.model,
                "--task",
                options.task,
                "--prompts",
                str(options.prompts),
                "--out",
                f"{out}/c",
            ),
            ("maps", options.model, "--prompt", options.prompt, "--heads", "L0H0", "--out", f"{out}/maps"),
            ("transcoder", options.model, *rows, *small, "--out", f"{out}/tc"),
            ("transcoder", options.model, *rows, *small, "--features", FEW, "--out", f"{out}/few"),
            (
                "trace",
                options.model,
                "--prompt",
                options.prompt,
                "--transcoders",
                f"{out}/few",
                "--out",
                f"{out}/t",
            ),
        ]
        for stage in stages:
            used = run(*stage)
            said = ["", ""] if used.said is None else [f"{used.said:.1f}", f"{used.said / used.peak:.2f}"]
            cells = [used.stage, said[0], f"{used.peak:.1f}", said[1], f"{used.seconds / 60:.1f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Memory))
