"""On how many GPUs a run of post-training fits at least, and how it is started there.

Tried in this order, with 1, 2, 4, ... GPUs: one GPU alone; FSDP; FSDP with activation checkpointing. In each, as many rows
at once as fit (`--grad-accum` takes the others one after the other). DDP holds everything on every GPU: it makes a run that
fits on one faster, and none smaller. LoRA does not go together with FSDP (`posttraining.run` refuses it), so it fits on
one GPU or on none.
"""

import shlex
from dataclasses import dataclass, fields, replace

from edgewise import pocket
from edgewise.planning.hardware import GIB, GPU, USABLE
from edgewise.planning.memory import Memory, Setup, at_start, sparsify
from edgewise.planning.shape import Shape
from edgewise.training.sparsify.config import RECIPES, SparsifyConfig

_MOST = 4096
_GPUS_OF_A_MACHINE = 8


@dataclass(frozen=True)
class Layout:
    """Where a run fits."""

    setup: Setup
    batch_size: int
    """To a step: those asked for, or more if there are more GPUs than rows."""
    grad_accum: int
    memory: Memory

    @property
    def kind(self) -> str:
        if not self.setup.sharded:
            return "one GPU"
        return "FSDP 2 with activation checkpointing" if self.setup.checkpointing else "FSDP 2"


def smallest_layout(shape: Shape, setup: Setup, rows: int, grad_accum: int, gpu: GPU) -> Layout | None:
    """The fewest GPUs on which a run fits, in bf16; None if it fits on none."""
    most = 1 if setup.lora is not None else _MOST
    for G in (2**power for power in range(most.bit_length())):
        each = -(-max(rows, G * grad_accum) // (G * grad_accum)) * grad_accum  # rows must divide evenly
        for checkpointing in (False, True) if G > 1 else (False,):
            for parts in range(grad_accum, each + 1):
                if each % parts:
                    continue
                tried = replace(
                    setup, G=G, sharded=G > 1, checkpointing=checkpointing, bf16=True, B=each // parts
                )
                memory = sparsify(shape, tried)
                if max(memory.total, at_start(shape, tried)) <= USABLE * gpu.memory:
                    return Layout(tried, each * G, parts, memory)
    return None


def in_the_way(shape: Shape, setup: Setup, gpu: GPU) -> str:
    """Why a run fits on no number of GPUs: the largest of what each of them must hold."""
    sharded = setup.lora is None
    least = replace(setup, B=1, G=_MOST if sharded else 1, sharded=sharded, checkpointing=sharded, bf16=True)
    memory = sparsify(shape, least)
    parts = {
        "the dense model": memory.dense,
        "the twin's weights": memory.weights,
        "activations of one row": memory.activations,
        "logits of one row": memory.logits,
        "masks of one packed row": memory.masks,
    }
    room = USABLE * gpu.memory
    of = f"on each GPU, of {room / GIB:.0f} GB that can be used"
    start = at_start(shape, least)
    if sharded and start > room:
        return f"the dense model, and the twin before FSDP divides it: {start / GIB:,.0f} GB {of}"
    largest = sorted(parts, key=lambda part: -parts[part])
    if parts[largest[0]] > room:
        return f"{largest[0]}: {parts[largest[0]] / GIB:,.0f} GB {of}"
    listed = ", ".join(f"{part} {parts[part] / GIB:,.0f}" for part in largest[:3])
    return f"together {memory.total / GIB:,.0f} GB {of}; the most of it {listed}"


_PLANNED = ("tokens", "minutes", "dtype", "batch_size", "grad_accum", "out", "resume")


def _as_asked(config: SparsifyConfig) -> list[str]:
    """The flags that were given, except those that the plan decides."""
    words = []
    for field in fields(config):
        value, flag = getattr(config, field.name), field.name.replace("_", "-")
        if field.name in _PLANNED or value == field.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(shlex.join([f"--{flag}", *map(str, value if isinstance(value, tuple) else [value])]))
    return words


def launch_line(layout: Layout, model: str, config: SparsifyConfig, tokens: int) -> str:
    """The command that starts the run there."""
    data = "" if model in pocket.NAMES else "--data ... "
    words = [f"edgewise sparsify {model} {data}--tokens {tokens / 1e6:g}M --dtype bfloat16"]
    words += _as_asked(config)
    words += (
        [f"--batch-size {layout.batch_size}"]
        if layout.batch_size != RECIPES[config.recipe].batch_size
        else []
    )
    words += [f"--grad-accum {layout.grad_accum}"] if layout.grad_accum > 1 else []
    command = " ".join([*words, "--out ..."])
    if not layout.setup.sharded:
        return command
    options = ["--use_fsdp --fsdp_version 2", f"--num_processes {layout.setup.G}"]
    if layout.setup.G > _GPUS_OF_A_MACHINE:
        options.append(f"--num_machines {layout.setup.G // _GPUS_OF_A_MACHINE}")
    options.append("--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP")
    # otherwise only one process loads weights, and the dense model of all others, which FSDP does not see, is zeros
    options.append("--fsdp_cpu_ram_efficient_loading false")
    options += ["--fsdp_activation_checkpointing true"] if layout.setup.checkpointing else []
    return f"accelerate launch {' '.join(options)} -m {command}"
