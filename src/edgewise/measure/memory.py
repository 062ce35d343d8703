"""Bytes of memory that this process holds: now, and at most since it began."""

import re
import sys
from pathlib import Path

import psutil


def now() -> int:
    return psutil.Process().memory_info().rss


def most() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would start at the parent's size
        return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0])
    info = psutil.Process().memory_info()
    if hasattr(info, "peak_wset"):  # Windows, which has no `resource`
        return info.peak_wset  # pyright: ignore
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def most_with(more: int) -> int:
    """The peak of a process that is about to need so many bytes more: maybe it had more already, while it loaded."""
    return max(most(), now() + more)
