"""The fewest GPUs on which a run of post-training fits.

Tried with 1, 2, 4, ... GPUs: one alone, then FSDP, then FSDP with activation checkpointing; each with as few micro-batches
as fit. DDP holds everything on every GPU: it makes a run that fits on one faster, and none smaller. LoRA is not supported
with FSDP, so it fits on one GPU or on none.
"""

import math
from dataclasses import dataclass, fields, replace

from edgewise.planning.hardware import GIB, GPU, USABLE
from edgewise.planning.memory import Memory, sparsify
from edgewise.planning.setup import Setup
from edgewise.planning.shape import Shape

MAX_GPUS = 4096


@dataclass(frozen=True)
class Layout:
    """A run as it fits on GPUs."""

    setup: Setup
    batch_size: int
    """Sequences per step: the run's, or more if there are more GPUs than sequences."""
    grad_accum: int
    memory: Memory

    @property
    def kind(self) -> str:
        if not self.setup.sharded:
            return "one GPU"
        return "FSDP 2 with activation checkpointing" if self.setup.checkpointing else "FSDP 2"


def smallest_layout(shape: Shape, setup: Setup, batch_size: int, grad_accum: int, gpu: GPU) -> Layout | None:
    """The fewest GPUs on which a run fits, in bf16; None if it fits on none."""
    max_gpus = 1 if setup.lora is not None else MAX_GPUS
    for G in (2**power for power in range(max_gpus.bit_length())):
        per_gpu = -(-max(batch_size, G * grad_accum) // (G * grad_accum)) * grad_accum  # must divide evenly
        for checkpointing in (False, True) if G > 1 else (False,):
            for n_micro in (n for n in _divisors(per_gpu) if n >= grad_accum):
                tried = replace(setup, n_gpus=G, sharded=G > 1, checkpointing=checkpointing, bf16=True)
                tried = replace(tried, micro_batch=per_gpu // n_micro)
                memory = sparsify(shape, tried)
                if memory.total <= USABLE * gpu.memory:
                    return Layout(tried, per_gpu * G, n_micro, memory)
    return None


def _divisors(n: int) -> list[int]:
    """All divisors, ascending."""
    small = [divisor for divisor in range(1, math.isqrt(n) + 1) if n % divisor == 0]
    return sorted({*small, *(n // divisor for divisor in small)})


def obstacle(shape: Shape, setup: Setup, gpu: GPU) -> str:
    """Why a run fits on no number of GPUs."""
    sharded, room = setup.lora is None, USABLE * gpu.memory
    least = replace(setup, micro_batch=1, bf16=True, sharded=sharded, checkpointing=sharded)
    memory = sparsify(shape, replace(least, n_gpus=MAX_GPUS if sharded else 1))
    sizes = {field.name: getattr(memory, field.name) for field in fields(memory)}
    name = max(sizes, key=lambda name: sizes[name])
    cause = f"{sizes[name] / GIB:,.0f} of it {name}, with one sequence at once"
    return f"{memory.total / GIB:,.0f} GB on each GPU, of which {room / GIB:.0f} GB can be used: {cause}"
