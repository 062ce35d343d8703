"""Memory: what this process holds, what it will hold at most, and how much a forward pass takes."""

import re
import sys
from pathlib import Path

import psutil

# POSIX only; Windows reports its peak through psutil
if sys.platform != "win32":
    import resource


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return psutil.Process().memory_info().rss


def peak() -> int:
    """Bytes of memory that this process has held at most since it began."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would start at the parent's size
        return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0])
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset  # pyright: ignore
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def projected_peak(extra: int) -> int:
    """Peak memory of a process that is about to allocate `extra` bytes; loading may have taken more already."""
    return max(peak(), resident() + extra)


def activation_elements(t: int, width: int, inner: int, heads: int, cached: int = 0) -> int:
    """Activation elements per sequence and layer, for t tokens after `cached` ones: residual streams, the inside of an MLP,
    two attention maps."""
    return t * (12 * width + 3 * inner) + 2 * heads * t * (t + cached)
