"""Threads that share a machine: how they wait for each other, and how many of them compute.

On Linux torch and numba compute in one pool, that of torch's OpenMP runtime. It divides each operation evenly over its
threads, and whoever is done first spins: on recent processors for tens of milliseconds, longer than most operations take.
Beside other busy processes the last thread often waits for a core on which another one spins. A thread that sleeps at once
has to be woken for each operation, which takes longer than a small one. So threads here spin for a moment, then sleep,
and there are no more of them than cores that nobody else uses.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil

_SPIN_COUNT = 500
"""Rounds that a waiting thread spins in GNU's OpenMP runtime before it sleeps. The gate's many small operations are twice as
fast as without, and nothing is lost beside a busy process (docs/research/2026-11-20-shared-machine.md)."""
_INTERVAL = 2.0
"""Seconds over which the use of the cores is measured, at least."""


def wait_passively() -> None:
    """Have waiting threads sleep soon instead of spinning on, unless the environment says how they wait.

    The runtimes read this when they are loaded: after `import torch` it comes too late for torch's own threads.
    """
    if "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ["GOMP_SPINCOUNT"] = str(_SPIN_COUNT)  # of GNU's runtime, which torch has on Linux
        os.environ.setdefault("KMP_BLOCKTIME", "0")  # libomp: macOS, Windows


class CoreUse(NamedTuple):
    """Seconds since the start, over all cores that this process may use."""

    elapsed: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> "CoreUse":
        """The present counters."""
        times = psutil.cpu_times(percpu=True)
        mine = [times[i] for i in _cores() if i < len(times)]
        busy = sum(sum(t) - t.idle - getattr(t, "iowait", 0) - getattr(t, "guest", 0) for t in mine)
        own = time.process_time()
        return cls(time.monotonic(), busy, own)

    def cores_of_others(self, before: "CoreUse") -> float:
        """How many cores other processes have kept busy since `before`, on average."""
        busy, own = self.busy - before.busy, self.own - before.own
        return max(0.0, busy - own) / max(1e-9, self.elapsed - before.elapsed)


def threads_beside(others: float, cores: int, limit: int) -> int:
    """Number of threads: as many as there are free cores, at least 1 and at most `limit`."""
    return max(1, min(limit, round(cores - others)))


class FreeCores:
    """Keeps torch's number of threads (which numba's kernels follow) at the number of cores that nobody else uses."""

    def __init__(self, counters: Callable[[], CoreUse] = CoreUse.now) -> None:
        """`counters`: reads the present use of the cores."""
        self._counters = counters
        self._before = counters()
        self._limit: int | None = None  # torch's own number of threads
        self._chosen: int | None = None

    def update(self) -> None:
        """Measure and choose again, at most every few seconds.

        A number that the user has chosen, by OMP_NUM_THREADS or `torch.set_num_threads`, is left alone.
        """
        now = self._counters()
        if now.elapsed - self._before.elapsed < _INTERVAL or "OMP_NUM_THREADS" in os.environ:
            return
        import torch  # takes seconds, and whoever computes has it

        threads = torch.get_num_threads()
        if self._limit is None:
            self._limit = self._chosen = threads
        if threads != self._chosen:
            return
        chosen = threads_beside(now.cores_of_others(self._before), len(_cores()), self._limit)
        self._before = now
        if chosen != threads:
            torch.set_num_threads(chosen)
            self._chosen = chosen


def _cores() -> list[int]:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


_free_cores: list[FreeCores] = []


def use_free_cores() -> None:
    """Update the process's number of threads: called where models are loaded and by every step of a training."""
    if not _free_cores:
        _free_cores.append(FreeCores())
    _free_cores[0].update()
