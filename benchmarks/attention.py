"""Gated attention, forward and backward, against a naive implementation and against dense attention.

    python benchmarks/attention.py                 # all lengths, about three minutes on two cores
    python benchmarks/attention.py --lengths 1024  # one of them
    python benchmarks/attention.py --device cuda   # on a GPU, in bfloat16; not yet run on one

Three implementations, interleaved in one run because clocks drift: `naive` writes the equations down and lets autograd keep
every T x T matrix; `ours` is `gated_attention`; `dense` is torch's scaled_dot_product_attention. Times are the best of all
repeats; extra memory is the increase of peak memory in a process of its own, on a GPU that of torch's
allocator.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from measure import cost
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from edgewise.kernels.dispatch import gated_attention
from edgewise.kernels.equations import GateSpec

BATCH, HEADS, WIDTH = 2, 12, 64
LENGTHS = [128, 256, 512, 1024, 2048]


def naive(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The `relative` gate, straight from the equations."""
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    s = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(future, -torch.inf)
    z = s - s.logsumexp(-1, keepdim=True) + b.view(-1, 1, 1)
    g = torch.sigmoid(z + torch.rand_like(z).clamp(1e-6, 1 - 1e-6).logit())
    M = (g > 0.5).to(g.dtype) + g - g.detach()
    return (M * torch.softmax(s, -1)).to(v.dtype) @ v, torch.sigmoid(z).sum((-2, -1))


def ours(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    out = gated_attention(q, k, v, b, GateSpec(kappa=1.0, mode="sample", scale=WIDTH**-0.5, seed=1))
    return out.y, out.expected_edges


def dense(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return scaled_dot_product_attention(q, k, v, is_causal=True), (b * 0).expand(BATCH, HEADS)


IMPLEMENTATIONS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "naive": naive,
    "ours": ours,
    "dense": dense,
}


def step(name: str, length: int, device: str = "cpu") -> Callable[[], None]:
    """One forward and backward pass of an implementation."""
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v, dy = (torch.randn(BATCH, HEADS, length, WIDTH, device=device, dtype=dtype) for _ in range(4))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    b = torch.full((HEADS,), 3.5, device=device, requires_grad=True)

    def run() -> None:
        y, edges = IMPLEMENTATIONS[name](q, k, v, b)
        torch.autograd.backward((y, edges), (dy.to(y.dtype), torch.ones_like(edges)))

    return run


def times(length: int, repeats: int, device: str = "cpu") -> dict[str, float]:
    """Best time of each implementation in milliseconds, interleaved."""
    steps = {name: step(name, length, device) for name in IMPLEMENTATIONS}
    for run in steps.values():
        run()
    best = dict.fromkeys(IMPLEMENTATIONS, math.inf)
    for _ in range(repeats):
        for name, run in steps.items():
            synchronize(device)
            start = time.perf_counter()
            run()
            synchronize(device)
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def memory_on(device: str, name: str, length: int) -> float:
    """Increase of a GPU's peak memory by one step, in MB."""
    run = step(name, length, device)
    run()
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6


def extra_memory(name: str, length: int) -> float:
    """Increase of peak memory by one step in MB, once inputs are allocated and code is compiled."""
    warm_up = step(name, 128)
    warm_up()
    return cost(step(name, length))[1].megabytes


class Comparison(NamedTuple):
    """Time and extra memory by implementation."""

    milliseconds: dict[str, float]
    megabytes: dict[str, float]


def compare(length: int, repeats: int = 9, device: str = "cpu") -> Comparison:
    """Long sequences get fewer repeats: the naive implementation takes seconds there."""
    milliseconds = times(length, max(3, repeats if length <= 1024 else repeats // 3), device)
    if device != "cpu":
        return Comparison(milliseconds, {name: memory_on(device, name, length) for name in IMPLEMENTATIONS})
    command = [sys.executable, __file__, "--memory-of"]
    megabytes = {
        name: json.loads(subprocess.check_output([*command, name, str(length)])) for name in IMPLEMENTATIONS
    }
    return Comparison(milliseconds, megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: not yet run on a GPU")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--memory-of", nargs=2, metavar=("NAME", "LENGTH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        name, length = arguments.memory_of
        print(json.dumps(extra_memory(name, int(length))))
        return
    on_cpu = arguments.device == "cpu"
    where = f"float32, {torch.get_num_threads()} threads" if on_cpu else f"bfloat16, {arguments.device}"
    table = Table(title=f"forward + backward, B={BATCH}, {HEADS} heads, d={WIDTH}, {where}")
    for name in (
        "T",
        "naive ms",
        "ours ms",
        "dense ms",
        "naive/ours",
        "ours/dense",
        "naive MB",
        "ours MB",
        "dense MB",
        "naive/ours MB",
    ):
        table.add_column(name, justify="right")
    for length in track(arguments.lengths, "measuring", transient=True):
        milliseconds, megabytes = compare(length, arguments.repeats, arguments.device)
        memory_ratio = megabytes["naive"] / max(megabytes["ours"], 0.1)
        table.add_row(
            str(length),
            *(f"{milliseconds[name]:.1f}" for name in IMPLEMENTATIONS),
            f"{milliseconds['naive'] / milliseconds['ours']:.1f}x",
            f"{milliseconds['ours'] / milliseconds['dense']:.2f}x",
            *(f"{megabytes[name]:.0f}" for name in IMPLEMENTATIONS),
            f"{memory_ratio:.1f}x",
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
