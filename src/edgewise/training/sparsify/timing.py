"""How long the steps of a run take, measured before it is planned."""

import time
from typing import TYPE_CHECKING

from torch import Tensor

from edgewise.core.devices import synchronize
from edgewise.training.budget import Costs
from edgewise.training.sparsify.layerwise import STEPS_PER_BATCH

if TYPE_CHECKING:
    from edgewise.training.sparsify.run import SparsifyRun

_MEASURED_BATCHES = 4
_LONG_ENOUGH = 20.0
"""Seconds after which slow steps are measured no further."""
TWIN_PASS = 1.6
"""Time to measure the twin against what is kept of the dense model, in passes of the dense model."""


def measure_times(run: "SparsifyRun") -> Costs:
    """Time of a joint step, and of the layer-wise steps that are left."""
    warmup_steps, seconds = max(0, run.layerwise_steps - run.state.step), measure_step(run)
    if not warmup_steps:
        return Costs(seconds)
    warmup = warmup_steps * measure_step(run, is_layerwise=True)
    return Costs(seconds, warmup_steps=warmup_steps, warmup=warmup)


def measure_step(run: "SparsifyRun", is_layerwise: bool = False) -> float:
    """Seconds of a step: the fastest of a few whose gradients are dropped, because other processes can only slow one down.
    Nothing of the run changes, except that before its first step the densities are initialised."""
    seconds, terms = [], run.gradients.no_terms()
    with run.batches.rewinding():
        for _ in range(_MEASURED_BATCHES):
            began = time.monotonic()
            batch = run.data.train.take(run.batches.batch_size)
            updates = STEPS_PER_BATCH if is_layerwise else 1
            for _ in range(updates):
                terms = run.gradients.compute(batch, run.state.step, run.penalty, is_layerwise)
            synchronize(run.accelerator.device)
            seconds.append((time.monotonic() - began) / updates)
            # the first has more to do; several processes must measure equally many
            is_enough = len(seconds) > 1 and sum(seconds) * updates > _LONG_ENOUGH
            if is_enough and run.accelerator.num_processes == 1:
                break
    run.twin.optimizer.zero_grad()
    sums: Tensor = run.accelerator.reduce(terms, "sum")  # pyright: ignore
    if run.state.step == 0:
        run.state.density_per_head = run.metrics_of(sums).density_per_head.tolist()
    return min(seconds)
