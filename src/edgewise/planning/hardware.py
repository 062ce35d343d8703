"""What machines can do: two GPUs by their data sheets, and this one by a short measurement.

How much of a data sheet's figure a real run reaches is an assumption, and stands beside it. No GPU was at hand to check.
"""

import time
from dataclasses import dataclass

import torch

from edgewise.planning.flops import Work

GIB = 2**30


@dataclass(frozen=True)
class GPU:
    """Rates in units of 10^12 a second."""

    name: str
    memory: int
    """Bytes."""
    bf16: float
    """FLOPs of dense matrix products, without sparsity."""
    float32: float
    """The same in full float32, which is torch's default; TF32 would be several times as fast, and coarser."""
    bandwidth: float
    """Bytes from and to memory."""
    utilisation: float
    """Assumed share of the FLOPs."""
    bandwidth_utilisation: float = 0.6
    """Assumed share of the bandwidth."""

    def seconds(self, work: Work) -> float:
        """On one such GPU; the time of talking to others is in the assumed share."""
        flops = work.products / self.bf16 + work.exact / self.float32
        return (flops / self.utilisation + work.moved / (self.bandwidth * self.bandwidth_utilisation)) / 1e12

    def row_pass_share(self, work: Work) -> float:
        """Of the time that goes into the gate's row passes."""
        return self.seconds(Work(moved=work.moved)) / self.seconds(work)


H100 = GPU("H100 SXM 80 GB", 80 * GIB, bf16=989, float32=67, bandwidth=3.35, utilisation=0.35)
A100 = GPU("A100 SXM 80 GB", 80 * GIB, bf16=312, float32=19.5, bandwidth=2.04, utilisation=0.40)
GPUS = (H100, A100)

USABLE = 0.9
"""Share of a GPU's memory that a run can count on: the driver, libraries and gaps between tensors take the rest."""
CPU_SHARE = 0.5
"""Of the rate of a large matrix product, what whole stages reach. Measured: 0.38 (a step of `pocket`), 0.58 (a step of GPT-2
small), 0.43 (EAP-IG on it), 0.74 (patching its heads)."""


@dataclass(frozen=True)
class ThisMachine:
    """Measured now, beside whatever else it is doing."""

    rate: float
    """FLOPs of a large float32 matrix product, a second."""

    def seconds(self, work: Work) -> float:
        return work.flops / (self.rate * CPU_SHARE)


def measure_machine(seconds: float = 0.5) -> ThisMachine:
    """Multiply for about half a second. The fastest counts: whatever else the machine does can only slow one down."""
    # small ones are over before a busy machine turns to something else; large ones keep many cores at work
    matrices = [torch.ones(n, n, device="cpu") for n in (384, 1024)]
    rate, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end or not rate:
        for a in matrices:
            began = time.perf_counter()
            torch.mm(a, a)
            rate = max(rate, 2 * len(a) ** 3 / (time.perf_counter() - began))
    return ThisMachine(rate)
