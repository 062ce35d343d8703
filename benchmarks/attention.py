"""Gated attention, forward and backward, against the naive way and against dense attention.

    python benchmarks/attention.py                 # all lengths, about three minutes on two cores
    python benchmarks/attention.py --lengths 1024  # one of them

Three ways, in turns within one run, because clocks drift: `naive` writes the equations down and lets autograd keep every
T x T matrix; `ours` is `gated_attention`; `dense` is torch's scaled_dot_product_attention. Times are
the best of the turns; extra memory is the peak of the process above where it stood, in a process of its own.
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
    """The `relative` gate as one would first write it."""
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    s = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(future, -torch.inf)
    z = s - s.logsumexp(-1, keepdim=True) + b.view(-1, 1, 1)
    g = torch.sigmoid(z + torch.rand_like(z).logit())
    M = (g > 0.5).float() + g - g.detach()
    return (M * torch.softmax(s, -1)) @ v, torch.sigmoid(z).sum((-2, -1))


def ours(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    out = gated_attention(q, k, v, b, GateSpec(kappa=1.0, mode="sample", scale=WIDTH**-0.5, seed=1))
    return out.y, out.expected_edges


def dense(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return scaled_dot_product_attention(q, k, v, is_causal=True), (b * 0).expand(BATCH, HEADS)


WAYS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {"naive": naive, "ours": ours, "dense": dense}


def step(way: str, length: int) -> Callable[[], None]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, HEADS, length, WIDTH, requires_grad=True) for _ in range(3))
    b = torch.full((HEADS,), 3.5, requires_grad=True)
    dy, dedges = torch.randn(BATCH, HEADS, length, WIDTH), torch.ones(BATCH, HEADS)

    def run() -> None:
        torch.autograd.backward(WAYS[way](q, k, v, b), (dy, dedges))

    return run


def times(length: int, turns: int) -> dict[str, float]:
    """Best time of each way in milliseconds, the ways taking turns."""
    steps = {way: step(way, length) for way in WAYS}
    for run in steps.values():
        run()
    best = dict.fromkeys(WAYS, math.inf)
    for _ in range(turns):
        for way, run in steps.items():
            start = time.perf_counter()
            run()
            best[way] = min(best[way], 1e3 * (time.perf_counter() - start))
    return best


def extra_memory(way: str, length: int) -> float:
    """Peak MB of one step above what stood before it: inputs allocated, code compiled."""
    warm_up = step(way, 128)
    warm_up()
    return cost(step(way, length))[1].megabytes


class Compared(NamedTuple):
    """Each way's milliseconds and extra MB."""

    spent: dict[str, float]
    taken: dict[str, float]


def compare(length: int, turns: int = 9) -> Compared:
    """Long texts get fewer turns: the naive way takes seconds there."""
    spent = times(length, max(3, turns if length <= 1024 else turns // 3))
    ask = [sys.executable, __file__, "--memory-of"]
    taken = {way: json.loads(subprocess.check_output([*ask, way, str(length)])) for way in WAYS}
    return Compared(spent, taken)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--memory-of", nargs=2, metavar=("WAY", "LENGTH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        way, length = arguments.memory_of
        print(json.dumps(extra_memory(way, int(length))))
        return
    table = Table(
        title=f"forward + backward, B={BATCH}, {HEADS} heads, d={WIDTH}, float32, {torch.get_num_threads()} threads"
    )
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
        spent, taken = compare(length, arguments.turns)
        ratio_of_memory = taken["naive"] / max(taken["ours"], 0.1)
        table.add_row(
            str(length),
            *(f"{spent[way]:.1f}" for way in WAYS),
            f"{spent['naive'] / spent['ours']:.1f}x",
            f"{spent['ours'] / spent['dense']:.2f}x",
            *(f"{taken[way]:.0f}" for way in WAYS),
            f"{ratio_of_memory:.1f}x",
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
