"""Speed of one process alone, beside one busy core, and beside a second process of the same kind.

    python benchmarks/threads.py                     # each kind of work, ratios to the speed alone
    python benchmarks/threads.py sparsify --rounds 5 --seconds 6

A round measures all three in turn. `others` is the share of the machine's cores that processes outside this benchmark took
meanwhile: above a few percent, "alone" was not alone. The table holds medians of the ratios of the quieter half of rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import edgewise  # isort: skip  # first: it chooses how threads wait before torch is imported
from edgewise.training.callbacks import Callback

BUSY = "while True: pass"


class Pace:
    """Measures as long as each line on stdin says, and answers with the speed."""

    def __init__(self, warmup: int) -> None:
        """`warmup`: units of work before the first measurement."""
        self._warmup, self._began, self._seconds, self._done = warmup, 0.0, 0.0, 0

    def did(self, amount: int) -> None:
        """Count a unit of work that has just been finished."""
        if self._warmup > 1:
            self._warmup -= 1
            return
        if self._warmup == 1:
            self._warmup = 0
            print("ready", flush=True)
            self._wait()
            return
        self._done += amount
        spent = time.perf_counter() - self._began
        if spent >= self._seconds:
            print(self._done / spent, flush=True)
            self._wait()

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line:
            raise SystemExit
        self._seconds, self._done, self._began = float(line), 0, time.perf_counter()


class Steps(Callback):
    """Counts the tokens of a training's steps."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace

    def on_step_end(self, trainer, metrics) -> None:
        self.pace.did(trainer.state.tokens_per_step)


def sparsify() -> None:
    """Steps of `edgewise sparsify pocket`, in tokens."""
    with tempfile.TemporaryDirectory() as folder:
        config = edgewise.SparsifyConfig(out=Path(folder), tokens="100M", save_minutes=60)
        edgewise.sparsify("pocket", config=config, callbacks=[Steps(Pace(8))], display=QUIET)


def transcoder() -> None:
    """Steps of `edgewise transcoder pocket`, in tokens, the passes that fill its buffer included."""
    with tempfile.TemporaryDirectory() as folder:
        config = edgewise.TranscoderConfig(out=Path(folder), tokens="100M", save_minutes=60)
        edgewise.train_transcoder("pocket", config=config, callbacks=[Steps(Pace(8))], display=QUIET)


def evaluate() -> None:
    """Loss and density of pocket-sparse on its held-out text, in tokens."""
    from edgewise.data import embedded_data
    from edgewise.measure.loss import measure

    twin, text = edgewise.load("pocket-sparse"), embedded_data("pocket", 0)
    assert text is not None
    batch, pace = text.held_out.select(slice(16)), Pace(3)
    while True:
        measure(twin, batch)
        pace.did(batch.ids.numel())


def circuit() -> None:
    """The heads of a circuit of pocket-sparse: ranked, minimal, token edges."""
    config = edgewise.CircuitConfig(task="copy", prompts=4, edges=False, scrutiny=False)
    repeat(lambda models: edgewise.find_circuits(models, config))


def maps() -> None:
    """Attention maps of a head of pocket-sparse."""
    config = edgewise.MapsConfig(prompt=PROMPT, heads="L5H1")
    repeat(lambda models: edgewise.collect_maps(models, config))


def trace() -> None:
    """A trace of pocket-sparse, with ten ablations of a kind."""
    config = edgewise.TraceConfig(prompt=PROMPT, ablations=10)
    repeat(lambda models: edgewise.trace(models, config))


PROMPT = 'The opposite of " large " is "'


def repeat(analysis: Callable[[edgewise.LoadedModels], object]) -> None:
    models, pace = edgewise.load_models("pocket-sparse"), Pace(2)
    while True:
        analysis(models)
        pace.did(1)


QUIET = edgewise.Display(quiet=True)
WORK = {
    "sparsify": sparsify,
    "transcoder": transcoder,
    "evaluate": evaluate,
    "circuit": circuit,
    "maps": maps,
    "trace": trace,
}


class Worker:
    """A process that measures its own speed."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, __file__, kind, "--worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_until_ready(self) -> None:
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
    parser.add_argument("kinds", nargs="*", help=f"{', '.join(WORK)}; all of them if not given")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        WORK[arguments.kinds[0]]()
        return
    print(f"{'work':<10}{'alone, units/s':>16}{'busy core':>12}{'second':>10}{'others':>10}")
    for kind in arguments.kinds or WORK:
        first, second = Worker(kind), Worker(kind)
        try:
            first.wait_until_ready()
            second.wait_until_ready()
            rounds = [measure(first, second, arguments.seconds) for _ in range(arguments.rounds)]
        finally:
            first.close()
            second.close()
        rounds = sorted(rounds, key=lambda r: r.others)[: -(-len(rounds) // 2)]
        alone, others = (statistics.median(getattr(r, name) for r in rounds) for name in ("alone", "others"))
        busy, twin = (
            statistics.median(getattr(r, name) / r.alone for r in rounds) for name in ("busy", "twin")
        )
        print(f"{kind:<10}{alone:>16,.1f}{busy:>11.2f}x{twin:>9.2f}x{others:>10.0%}", flush=True)


if __name__ == "__main__":
    main()
