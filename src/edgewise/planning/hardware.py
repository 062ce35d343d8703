"""Speeds of machines: two GPUs by their data sheets, this machine by a short measurement.

Which share of a data sheet's figure a run reaches is an assumption, written beside it. No GPU was at hand to check.
"""

import time
from dataclasses import dataclass

import torch

from edgewise.planning.flops import Work

GIB = 2**30
USABLE = 0.9
"""Share of a GPU's memory that a run can use: the driver, libraries and fragmentation take the rest."""
CPU_SHARE = 0.5
"""Share of the rate of a large matrix product that whole stages reach. Measured: 0.38 (a step of `pocket`), 0.58 (a step of
GPT-2 small), 0.43 (EAP-IG on it), 0.74 (patching its heads)."""


@dataclass(frozen=True)
class GPU:
    """Rates in 10^12 per second."""

    name: str
    memory: int  # bytes
    bf16: float  # FLOPs of dense matrix products, without structured sparsity
    float32: float  # the same in full float32, torch's default; TF32 is several times as fast, and coarser
    bandwidth: float  # bytes from and to memory
    utilisation: float  # assumed share of the FLOPs
    bandwidth_utilisation: float = 0.6  # assumed share of the bandwidth

    def seconds(self, work: Work) -> float:
        """Time on one GPU; communication between GPUs is in the assumed share."""
        flops = work.products / self.bf16 + work.exact / self.float32
        return (flops / self.utilisation + work.moved / (self.bandwidth * self.bandwidth_utilisation)) / 1e12

    def row_pass_share(self, work: Work) -> float:
        """Share of the time that the gate's row passes take."""
        return self.seconds(Work(moved=work.moved)) / self.seconds(work)


H100 = GPU("H100 SXM 80 GB", 80 * GIB, bf16=989, float32=67, bandwidth=3.35, utilisation=0.35)
A100 = GPU("A100 SXM 80 GB", 80 * GIB, bf16=312, float32=19.5, bandwidth=2.04, utilisation=0.40)
GPUS = (H100, A100)


@dataclass(frozen=True)
class ThisMachine:
    """The CPU at hand."""

    rate: float  # FLOPs per second of a large float32 matrix product

    def seconds(self, work: Work) -> float:
        return work.flops / (self.rate * CPU_SHARE)


def measure_machine(seconds: float = 0.5) -> ThisMachine:
    """Time matrix products and keep the fastest: other processes can only slow one down."""
    # small products finish before a busy machine switches to another process; large ones keep many cores busy
    matrices = [torch.ones(n, n, device="cpu") for n in (384, 1024)]
    rate, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end or not rate:
        for a in matrices:
            start = time.perf_counter()
            torch.mm(a, a)
            rate = max(rate, 2 * len(a) ** 3 / (time.perf_counter() - start))
    return ThisMachine(rate)
