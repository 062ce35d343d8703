"""Speed of one process alone, beside one busy core, and beside a second process of the same kind.

    python benchmarks/threads.py                     # each kind of work, ratios to the speed alone
    python benchmarks/threads.py train --rounds 5 --seconds 4

A round measures all three in turn; the table holds medians of the rounds' ratios. `others` is the share of the machine's
cores that processes outside this benchmark took meanwhile: above a few percent, "alone" was not alone.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import edgewise  # first: it chooses how threads wait before torch is imported

BUSY = "while True: pass"


def train() -> Callable[[], int]:
    """A step of gated training with distillation at pocket's size; returns its tokens."""
    import torch
    from step import SHAPES, host, step

    shape, rows, _ = SHAPES["pocket, T=128, 16 rows"]
    teacher, twin = host(shape), edgewise.gate(host(shape)).train()
    update = torch.optim.AdamW(twin.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, shape["vocab_size"], (rows, shape["n_positions"]))

    def work() -> int:
        step(twin, update, ids, gated=True, teacher=teacher)
        return ids.numel()

    return work


def forward() -> Callable[[], int]:
    """Forward passes of pocket-sparse, as an evaluation runs them; returns their tokens."""
    import torch

    twin = edgewise.load("pocket-sparse")
    ids = torch.randint(0, twin.config.vocab_size, (16, 128))

    def work() -> int:
        with torch.no_grad(), edgewise.tap(twin):
            twin(input_ids=ids, use_cache=False)
        return ids.numel()

    return work


def circuit() -> Callable[[], int]:
    """A circuit of pocket-sparse: patching heads and edges, thousands of small passes; returns 1."""
    models = edgewise.load_models("pocket-sparse")

    def work() -> int:
        edgewise.find_circuits(models, edgewise.CircuitConfig(task="copy", prompts=4))
        return 1

    return work


WORK = {"train": train, "forward": forward, "circuit": circuit}


def worker(kind: str) -> None:
    """Load, warm up, then measure for as many seconds as each line on stdin says."""
    work = WORK[kind]()
    for _ in range(2):
        work()
    print("ready", flush=True)
    for line in sys.stdin:
        began, done = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < float(line):
            done += work()
        print(done / spent, flush=True)


class Worker:
    """A process that measures its own speed."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, __file__, kind, "--worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def begin(self, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def speed(self) -> float:
        return float(self._read())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended early")
        return line


class Share(NamedTuple):
    """Seconds of all cores so far."""

    busy: float
    ours: float

    @classmethod
    def now(cls, pids: list[int]) -> "Share":
        if not Path("/proc/stat").exists():
            return cls(0.0, 0.0)
        ticks = os.sysconf("SC_CLK_TCK")
        user, nice, system = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:4])
        ours = 0
        for pid in pids:
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ours += int(after_name[11]) + int(after_name[12])
        return cls((user + nice + system) / ticks, ours / ticks)


class Round(NamedTuple):
    alone: float
    busy: float
    twin: float
    others: float


def measure(first: Worker, second: Worker, seconds: float) -> Round:
    """Alone, beside a busy loop, beside a second worker."""
    pids = [first.process.pid, second.process.pid]
    speeds, others = [], []
    for beside in ("nothing", "busy loop", "second worker"):
        loop = subprocess.Popen([sys.executable, "-c", BUSY]) if beside == "busy loop" else None
        counted = [*pids, *([loop.pid] if loop else [])]
        before, began = Share.now(counted), time.perf_counter()
        first.begin(seconds)
        if beside == "second worker":
            second.begin(seconds)
        speeds.append(first.speed())
        if beside == "second worker":
            speeds[-1] = (speeds[-1] + second.speed()) / 2
        after, spent = Share.now(counted), time.perf_counter() - began
        others.append(
            ((after.busy - before.busy) - (after.ours - before.ours)) / spent / (os.cpu_count() or 1)
        )
        if loop is not None:
            loop.kill()
            loop.wait()
    return Round(*speeds, statistics.fmean(others))  # pyright: ignore


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=list(WORK), choices=[*WORK, []])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.kinds[0])
        return
    print(f"{'work':<10}{'alone, units/s':>16}{'busy core':>12}{'second':>10}{'others':>10}")
    for kind in arguments.kinds:
        first, second = Worker(kind), Worker(kind)
        try:
            rounds = [measure(first, second, arguments.seconds) for _ in range(arguments.rounds)]
        finally:
            first.close()
            second.close()
        alone, others = (statistics.median(getattr(r, name) for r in rounds) for name in ("alone", "others"))
        busy, twin = (
            statistics.median(getattr(r, name) / r.alone for r in rounds) for name in ("busy", "twin")
        )
        print(f"{kind:<10}{alone:>16,.1f}{busy:>11.2f}x{twin:>9.2f}x{others:>10.0%}", flush=True)


if __name__ == "__main__":
    main()
