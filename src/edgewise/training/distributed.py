"""Processes that train together: the accelerator they share, and one process's share of a batch."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, fsdp2_prepare_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.core.devices import device_of
from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.data.packing import Processes
from edgewise.measure.forward import sequences_per_pass
from edgewise.measure.loss import Measured, measure
from edgewise.measure.reference import Reference


def make_accelerator(
    report_to: str | None = None, out: Path | None = None, device: str = "auto"
) -> Accelerator:
    """An accelerator for whatever launched this process; `report_to` is a tracker that logs into `out`."""
    # told that there is only a CPU, processes that torchrun started work together, instead of each for itself
    chosen = None if device == "auto" else device_of(device)
    only_cpu = not torch.accelerator.is_available() if chosen is None else chosen.type == "cpu"
    with _chosen_device(chosen):
        accelerator = Accelerator(
            cpu=only_cpu, log_with=report_to, project_dir=None if out is None else str(out)
        )
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.cpu_ram_efficient_loading:
        raise EdgewiseError(
            "with FSDP's cpu_ram_efficient_loading only one process would load the dense model's weights, and the others "
            "learn from zeros; start with --fsdp_cpu_ram_efficient_loading false"
        )
    if report_to and not accelerator.log_with:
        raise EdgewiseError(f"`report_to` {report_to} needs a package: pip install {report_to}")
    return accelerator


@contextmanager
def _chosen_device(device: torch.device | None) -> Iterator[None]:
    """Have accelerate take a device, inside a `with` block; None leaves the choice to it."""
    name, before = "ACCELERATE_TORCH_DEVICE", os.environ.get("ACCELERATE_TORCH_DEVICE")
    if device is not None and device.type != "cpu":
        os.environ[name] = str(device)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def text_processes(accelerator: Accelerator) -> Processes:
    """The processes of a run, which tokenize its text together."""
    count = accelerator.num_processes
    if count == 1 or not torch.distributed.is_initialized():
        return Processes()
    group = torch.distributed.new_group(backend="gloo")  # on the CPU: no process waits for its device

    def gather(own: Any) -> list[Any]:
        shares: list[Any] = [None] * count
        torch.distributed.all_gather_object(shares, own, group=group)
        return shares

    return Processes(accelerator.process_index, count, gather)


def place_teacher(model: PreTrainedModel, accelerator: Accelerator) -> PreTrainedModel:
    """A model that is not trained, on this process's device; with FSDP 2 in shards, as the trained one will be.

    FSDP 1 shards only what it trains: there every process has all of it.
    """
    if accelerator.distributed_type != DistributedType.FSDP or not accelerator.is_fsdp2:
        return model.to(accelerator.device).eval()  # pyright: ignore
    sharded: Any = fsdp2_prepare_model(accelerator, model.requires_grad_(False))
    sharded.set_reshard_after_forward(True)  # without a backward pass it would keep the unembedding
    return sharded.eval()


def share_of(batch: Batch, process: int, n_processes: int) -> Batch:
    """The sequences of one process: contiguous, as equal in number as can be."""
    n = len(batch.ids)
    return batch.select(slice(process * n // n_processes, (process + 1) * n // n_processes))


def measure_together(
    model: nn.Module,
    batch: Batch,
    accelerator: Accelerator,
    vocabulary: int,
    reference: Reference | None = None,
) -> Measured:
    """Measure a model of so many logits per token on a batch, each process on its share; against a reference, if given."""
    n, processes = len(batch.ids), accelerator.num_processes
    if n < processes:
        raise EdgewiseError(f"{n} held-out sequences are too few for {processes} processes")
    share = share_of(batch, accelerator.process_index, processes)
    first = accelerator.process_index * n // processes
    at_once = sequences_per_pass(batch, vocabulary * (1 if reference is None else 2))
    if n % processes:
        # forward passes are collective: shares that differ by a sequence must not differ in their number of passes
        at_once = next(size for size in itertools.count(at_once) if n // processes % size)

    def all_reduce(x: Tensor) -> Tensor:
        return x if processes == 1 else accelerator.reduce(x.to(accelerator.device), "sum")  # pyright: ignore

    return measure(
        model, share, batch_size=at_once, all_reduce=all_reduce, reference=reference, first_sequence=first
    )


def clip_gradients(accelerator: Accelerator, model: nn.Module, maximum: float = 1.0) -> Tensor:  # -> []
    """Scale gradients down to a norm; returns what it was, where it is: reading it would wait for the device."""
    norm: Any = accelerator.clip_grad_norm_(model.parameters(), maximum)
    if norm is None:  # where the launcher's own optimizer clips
        return torch.zeros(())
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of FSDP's shards


def count_pairs(batch: Batch) -> int:
    """(query, key) pairs of causal attention within documents."""
    if batch.positions is not None:
        return int((batch.positions + 1).sum())
    n, context = batch.ids.shape
    return n * context * (context + 1) // 2
