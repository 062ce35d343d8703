"""What a piece of work costs. Rivals import this too, from environments of their own: nothing but Python is needed."""

import gc
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

Found = TypeVar("Found")


class Cost(NamedTuple):
    seconds: float
    megabytes: float
    """Peak memory of the process above what it held when the work began."""


def cost(work: Callable[[], Found]) -> tuple[Found, Cost]:
    gc.collect()
    _forget_peak()
    before, began = peak(), time.perf_counter()
    results = work()
    return results, Cost(time.perf_counter() - began, peak() - before)


def peak() -> float:
    """The process's highest memory so far, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would start at the parent's size
        return int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def _forget_peak() -> None:
    """Loading a model, or compiling, may have taken more than the work will, and would hide it."""
    switch = Path("/proc/self/clear_refs")
    if switch.exists():  # elsewhere what is found is at least the truth's lower bound
        switch.write_text("5")
