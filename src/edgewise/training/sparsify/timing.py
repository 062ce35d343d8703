"""How long the steps of a run take, measured before it is planned."""

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from edgewise.training.budget import StepTimes
from edgewise.training.sparsify import layerwise

if TYPE_CHECKING:
    from edgewise.training.sparsify.run import SparsifyRun

_MEASURED = 4  # batches


def measure_times(run: "SparsifyRun") -> StepTimes:
    """Seconds of the steps to come."""
    warmup_steps, seconds = max(0, run.layerwise_steps - run.state.step), measure_step(run)
    if not warmup_steps:
        return StepTimes(seconds)
    return StepTimes(seconds, warmup_steps, warmup_steps * measure_step(run, is_layerwise=True))


def measure_step(run: "SparsifyRun", is_layerwise: bool = False) -> float:
    """Seconds of a step: some are computed and thrown away, the fastest counts, because whatever else the machine does can
    only slow one down. Nothing of the run changes, except that before its first step it learns its density."""
    device = run.accelerator.device
    seconds, terms = [], torch.zeros(3, device=device)
    with run.batches.rewinding():
        for _ in range(_MEASURED):
            began = time.monotonic()
            batch = run.data.train.take(run.batch_size)
            updates = layerwise.UPDATES if is_layerwise else 1
            for _ in range(updates):
                terms = run.gradients.compute(batch, run.state.step, run.penalty, is_layerwise)
            seconds.append((time.monotonic() - began) / updates)
    run.twin.optimizer.zero_grad()
    sums: Tensor = run.accelerator.reduce(terms, "sum")  # pyright: ignore
    if run.state.step == 0:
        run.state.density = sums[2].item()
    slowest: Tensor = run.accelerator.gather(torch.tensor([min(seconds)], device=device))  # pyright: ignore
    return slowest.max().item()
