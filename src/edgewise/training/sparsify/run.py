"""One run's parts: twin, dense model, optimizer, multiplier, data; one step of it, a validation, a snapshot. The gradient of
a step is computed in `gradients.py`.

A run may begin with steps in which each layer is trained alone (`layerwise.py`); the others train all layers together.
"""

import contextlib
import copy
import itertools
import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch, Data
from edgewise.measure.evaluation import Measured, measure, rows_at_once, vocabulary_of
from edgewise.models.checkpoint import gate
from edgewise.models.lora import Adapters
from edgewise.training import snapshot
from edgewise.training.averaging import Average
from edgewise.training.diverged import Diverged
from edgewise.training.sharding import share_of
from edgewise.training.sparsify import layerwise
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.gradients import Gradients
from edgewise.training.sparsify.null_value import (
    LITTLE,
    Mask,
    above,
    mean_unattended,
    rows_to_read,
    set_null_values,
)
from edgewise.training.sparsify.objective import (
    Multiplier,
    ceiling,
    least_pressure,
    let_go,
    schedule,
)
from edgewise.training.sparsify.parameters import (
    as_trained,
    can_fuse,
    parameter_groups,
)
from edgewise.training.sparsify.recipe import Recipe, choose_recipe

# At every snapshot it would say that tied weights are saved once.
logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)


_LONG = 4000
SAFETY = 0.8
"""Share of the tolerance that the multiplier aims at: what holds on training batches should hold on held-out text too."""


class StepLog(NamedTuple):
    """What one step saw, over all processes."""

    ce: float
    dense_ce: float
    """Of the dense model on the same batch; with a fixed target, that target."""
    density: float
    """Expected, on the training batch."""
    flags: tuple[float, ...]
    """Whatever the processes had to tell each other, added up."""


class _Place(NamedTuple):
    """What the schedule says of a step."""

    rate: float
    """Share of the highest learning rates."""
    least_pressure: float
    """In tolerances."""


class Run:
    """All that a run needs, and nothing of how it is shown."""

    def __init__(
        self,
        model: PreTrainedModel,
        data: Data,
        config: SparsifyConfig,
        accelerator: Accelerator,
        recipe: Recipe | None = None,
        is_resumed: bool = False,
    ):
        """`recipe`: chosen by the name in `config` and the model's size if not given. Weights of a resumed run are read."""
        self.config, self.data, self.accelerator = config, data, accelerator
        self.recipe = recipe or choose_recipe(config.recipe, model.num_parameters())
        self.batch_size = config.batch_size or self.recipe.optimizer.batch_size
        processes = accelerator.num_processes
        if self.batch_size % (processes * config.grad_accum):
            raise EdgewiseError(
                f"--batch-size {self.batch_size} cannot be split evenly over {processes} processes x "
                f"{config.grad_accum} micro-batches"
            )
        if config.lora is not None and accelerator.distributed_type == DistributedType.FSDP:
            raise EdgewiseError(
                "--lora does not go together with FSDP: it cannot be merged into weights in parts"
            )
        if config.layerwise_warmup and accelerator.distributed_type == DistributedType.FSDP:
            raise EdgewiseError(
                "--layerwise-warmup does not go together with FSDP: layers are not called through it"
            )
        self.micro_batch_size = self.batch_size // (processes * config.grad_accum)
        self.layerwise_steps = config.layerwise_tokens // self.tokens_per_step
        self.dense = model.to(accelerator.device).eval()  # pyright: ignore
        # weights are kept in single precision: the steps of training would be lost in bfloat16
        self.gate = self.recipe.gate_config(config.gate, config.b, config.sinks)
        twin = gate(copy.deepcopy(model).float(), self.gate)  # pyright: ignore
        self.first_state = self._before = copy.deepcopy(data.train.state_dict())
        if not is_resumed:
            set_null_values(twin, self.mean_unattended(above(LITTLE, self.gate.sinks)))
        self.rates = self.recipe.optimizer.learning_rates(
            config.lr, subset=config.lora is not None or config.attention_only
        )
        self._dropout = [(part, part.p) for part in twin.modules() if isinstance(part, nn.Dropout)]
        for part, _ in self._dropout:
            part.p = 0.0  # the constraint compares with the dense model, which is not disturbed either
        trained = as_trained(twin, config)
        groups = [{"params": found} for found in parameter_groups(trained)]
        optimizer = torch.optim.AdamW(
            groups, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=can_fuse(accelerator)
        )
        self.model, self.optimizer = accelerator.prepare(trained, optimizer)
        self.average = self._averaging()
        unembedding: Any = twin.get_output_embeddings()
        self.gradients = Gradients(
            self.dense,
            self.model,
            unembedding,
            config,
            self.recipe,
            accelerator,
            self.micro_batch_size,
            self._first_rows,
        )
        multiplier, tolerance = self.recipe.multiplier, config.loss_tolerance
        self.multiplier = Multiplier(
            multiplier.initial * tolerance,
            multiplier.step_size,
            multiplier.minimum * tolerance,
            multiplier.maximum * tolerance,
            multiplier.damping,
        )
        self.target = float("nan")  # the dense model's held-out loss, once measured
        self.step_number = self.steps = 0
        self.seconds = 0.0
        self.density = 1.0  # the last step's, which the relative pressure is relative to
        self.held_out_density = 1.0  # at the last validation
        self.saved_step: int | None = None
        self._repeated: Batch | None = None  # what layers alone go over several times

    @property
    def inner(self) -> nn.Module:
        """The model inside DDP or FSDP, still inside peft."""
        return self.gradients.inner

    @property
    def tokens(self) -> int:
        return self.step_number * self.tokens_per_step

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.data.train.context

    def _averaging(self) -> Average | None:
        """The average that will be the twin. FSDP has weights in parts, of which snapshots would hold one process's."""
        if (
            not self.recipe.optimizer.averaged_fraction
            or self.accelerator.distributed_type == DistributedType.FSDP
        ):
            return None
        average = Average(p for p in self.model.parameters() if p.requires_grad)
        accelerator, file = self.accelerator, "average.safetensors"
        accelerator.register_save_state_pre_hook(
            lambda _models, _weights, folder: (
                average.save(Path(folder, file)) if accelerator.is_main_process else None
            )
        )

        def load(_models: Any, folder: str) -> None:
            if Path(folder, file).is_file():  # a run that was begun without an average begins one now
                average.load(Path(folder, file))

        accelerator.register_load_state_pre_hook(load)
        return average

    # ------------------------------------------------------------------------------------------------------ a step

    @property
    def is_layerwise(self) -> bool:
        """Whether this step trains each layer by itself."""
        return self.step_number < self.layerwise_steps

    def compute_gradients(self, batch: Batch, is_layerwise: bool) -> Tensor:  # -> [3]: ce, dense ce, density
        return self.gradients.compute(batch, self.step_number, self.pressure, is_layerwise)

    def _first_rows(self, tokens: int) -> Batch:
        """The rows that the run began with: whatever is estimated from them is the same after a resume."""
        now = copy.deepcopy(self.data.train.state_dict())
        self.data.train.load_state_dict(copy.deepcopy(self.first_state))
        batch = self.data.train.take(max(1, tokens // self.data.train.context))
        self.data.train.load_state_dict(now)
        return batch

    def mean_unattended(self, mask: Mask) -> list[Tensor] | None:
        """What attending to nothing begins with, given the edges that stay; None if the recipe does without."""
        if not self.recipe.gate.null_value:
            return None
        context = self.data.train.context
        return mean_unattended(self.dense, self._first_rows(rows_to_read(context) * context), mask)

    @property
    def pressure(self) -> float:
        """What the density is multiplied by: beta, or beta over the present density if pressure is relative."""
        beta = self.multiplier.beta
        return beta / max(self.density, 1e-6) if self.recipe.log_density else beta

    def step(self, flags: tuple[float, ...] = ()) -> StepLog:
        """One update. `flags` are added up over the processes on the way."""
        began = time.monotonic()
        is_layerwise, at = self.is_layerwise, self._place
        if self.layerwise_steps == self.step_number > 0:
            self._begin_together()
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=False):
            group["lr"] = rate * at.rate
        sums = self.compute_gradients(self._next_batch(), is_layerwise)
        told = torch.cat([sums, torch.tensor(flags, device=sums.device)])
        ce, dense_ce, density, *flags_ = self.accelerator.reduce(told, "sum").tolist()  # pyright: ignore
        if not self.recipe.paired_baseline and not is_layerwise:
            dense_ce = self.target
        seen = StepLog(ce, dense_ce, density, tuple(flags_))
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        if not all(map(_is_finite, (ce, density, float(norm) if norm is not None else 0.0))):
            raise Diverged("the loss or its gradient is not a number", self)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._lower_ceiling()
        if self.average is not None and not is_layerwise:
            share = self.average.update(self.recipe.optimizer.averaged_fraction * self.horizon)
            # over the same steps, so that what the two lose can be compared; but over no fewer than ten
            self.multiplier.memory = 1 - min(share, max(0.1, 1 / self.average.seen))
        tolerance, recipe = self.config.loss_tolerance, self.recipe.multiplier
        least = at.least_pressure
        if self.config.density is not None:
            least = let_go(least, recipe.minimum, self.held_out_density / self.config.density)
        self.multiplier.speed = recipe.step_size
        if recipe.max_change is not None and not is_layerwise:
            self.multiplier.speed = min(recipe.step_size, recipe.max_change / self.horizon)
        self.multiplier.update(ce - dense_ce, SAFETY * tolerance, least * tolerance)
        self.density = density
        self.step_number += 1
        self.seconds += time.monotonic() - began
        return seen

    @property
    def horizon(self) -> int:
        """The steps of all layers that averages and pressure are spread over: those of a very long run need no more."""
        return min(self.steps - self.layerwise_steps, _LONG)

    @property
    def _place(self) -> "_Place":
        """Where the schedule is: the recipe's, which begins with the steps of all layers together. Before, rates warm up and
        the multiplier may yield: beyond the tolerance the estimate is far too low, and what it allows is not made up for."""
        multiplier, optimizer = self.recipe.multiplier, self.recipe.optimizer
        step, steps = self.step_number - self.layerwise_steps, self.steps - self.layerwise_steps
        if step < 0:
            return _Place(
                schedule(self.step_number, self.steps, optimizer.warmup_steps, 0.0), multiplier.minimum
            )
        pressure = least_pressure(
            step / steps, multiplier.hold_fraction, multiplier.hold_minimum, multiplier.minimum
        )
        return _Place(schedule(step, steps, optimizer.warmup_steps, optimizer.decay_fraction), pressure)

    def _begin_together(self) -> None:
        """Forget what belongs to the layers' own losses: gradients have another size now, most weights get their first, and
        the loss is real."""
        self.optimizer.state.clear()
        self.multiplier.gap = self.multiplier.correction = None

    def _next_batch(self) -> Batch:
        """New rows, or those of the step before while layers alone go over the same ones again."""
        if self._is_repeating and self._repeated is not None:
            return self._repeated
        self._forget_rows()
        if not self.is_layerwise:
            return self.data.train.take(self.batch_size)
        self._before = copy.deepcopy(self.data.train.state_dict())
        self._repeated = self.data.train.take(self.batch_size)
        return self._repeated

    def _forget_rows(self) -> None:
        self._repeated = None
        self.gradients.forget()

    @property
    def _is_repeating(self) -> bool:
        return self.is_layerwise and self.step_number % layerwise.UPDATES > 0

    @torch.no_grad()
    def _lower_ceiling(self) -> None:
        """Forbid attention spread thin, little by little, and never allow it again."""
        recipe, start = self.recipe.gate, self.gate.b
        if recipe.b_bound is not None and self.gate.learned:
            step, steps = self.step_number - self.layerwise_steps, self.steps - self.layerwise_steps
            # as slowly as thresholds move
            closing = recipe.b_bound_steps * self.recipe.optimizer.threshold_lr / self.rates[1]
            end = min(recipe.b_bound, start) if steps >= 2 * closing else start
            highest = ceiling(max(0, step), start, end, closing)
            for each in self.gradients.gates:
                each.b.clamp_(max=highest)

    def measure_step(self, is_layerwise: bool = False) -> float:
        """Seconds of a step: a few are computed and thrown away, the first to warm up; the fastest counts, because whatever
        else the machine does can only slow one down.

        Nothing of the run changes, except that before its first step it learns how dense it is.
        """
        state, device = copy.deepcopy(self.data.train.state_dict()), self.accelerator.device
        seconds, sums = [], torch.zeros(3, device=device)
        for _ in range(4):
            began = time.monotonic()
            batch = self.data.train.take(self.batch_size)
            updates = layerwise.UPDATES if is_layerwise else 1
            for _ in range(updates):
                sums = self.compute_gradients(batch, is_layerwise)
            seconds.append((time.monotonic() - began) / updates)
        self.optimizer.zero_grad()
        self.data.train.load_state_dict(state)
        self._forget_rows()
        whole: Tensor = self.accelerator.reduce(sums, "sum")  # pyright: ignore
        if self.step_number == 0:
            self.density = whole[2].item()
        slowest: Tensor = self.accelerator.gather(torch.tensor([min(seconds)], device=device))  # pyright: ignore
        return slowest.max().item()

    # ------------------------------------------------------------------------------------------------ validation

    def validate(self, rows: int | None = None) -> Measured:
        """The twin on held-out rows, gates as they will be used."""
        with self.average.applied() if self.average is not None else contextlib.nullcontext():
            return self._measure(self.model, rows)

    def take_notice(self, checked: Measured, dense_ce: float) -> None:
        """Of a validation."""
        self.held_out_density = checked.density
        if self.average is not None and self.step_number > self.layerwise_steps:
            self.multiplier.correct(checked.ce - dense_ce)

    def validate_dense(self, rows: int | None = None) -> Measured:
        return self._measure(self.dense, rows)

    def _measure(self, model: nn.Module, rows: int | None) -> Measured:
        held_out = self.data.held_out.select(slice(rows))
        count = self.accelerator.num_processes
        if len(held_out.ids) < count:
            raise EdgewiseError(f"{len(held_out.ids)} held-out rows are too few for {count} processes")
        mine = share_of(held_out, self.accelerator.process_index, count)
        at_once = rows_at_once(held_out, vocabulary_of(self.dense))
        if len(held_out.ids) % count:
            # forward passes are collective: shares that differ by a row must not differ in their number of pieces
            smallest = len(held_out.ids) // count
            at_once = next(n for n in itertools.count(at_once) if smallest % n)
        with self.gradients.autocast():
            return measure(model, mine, at_once, lambda x: self.accelerator.reduce(x, "sum"))  # pyright: ignore

    # ------------------------------------------------------------------------------------------------- snapshots

    @property
    def snapshot_folder(self) -> Path:
        return self.config.out / "snapshots"

    def position(self) -> dict[str, Any]:
        """All that is not a weight, as JSON."""
        return {
            "step": self.step_number,
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "density": self.density,
            "held_out_density": self.held_out_density,
            "target": self.target,
            "multiplier": self.multiplier.state_dict(),
            "recipe": asdict(self.recipe),
            # rows that are gone over again have to be taken again
            "data": {
                "name": self.data.train.name,
                "state": self._before if self._is_repeating else self.data.train.state_dict(),
            },
            "config": json.loads(json.dumps(asdict(self.config), default=str)),
        }

    def save_snapshot(self) -> Path:
        """Write the whole state, atomically; once for each step."""
        if self.saved_step == self.step_number:
            return self.snapshot_folder / snapshot.name(self.step_number)
        final = snapshot.write(self.accelerator, self.snapshot_folder, self.step_number, self.position())
        self.saved_step = self.step_number
        return final

    def restore(self, folder: Path, position: dict[str, Any]) -> None:
        """Become what a snapshot says."""
        self.accelerator.load_state(str(folder))
        self.data.train.load_state_dict(position["data"]["state"])
        self.multiplier.load_state_dict(position["multiplier"])
        self.step_number, self.steps = position["step"], position["steps"]
        self.saved_step = self.step_number
        self.seconds, self.density, self.target = position["seconds"], position["density"], position["target"]
        self.held_out_density = position.get("held_out_density", 1.0)

    def twin(self) -> "Finished":
        if self.average is not None:
            self.average.swap()
            self.average = None
        inner = self.inner.requires_grad_()
        for part, p in self._dropout:
            part.p = p
        if self.config.lora is not None:
            adapters = Adapters.of(inner)
            return Finished(inner.merge_and_unload().eval(), None, adapters)  # pyright: ignore
        state = None
        if self.accelerator.distributed_type == DistributedType.FSDP:
            state = self.accelerator.get_state_dict(self.model)
        return Finished(inner.eval(), state, None)  # pyright: ignore


class Finished(NamedTuple):
    """What a run comes to."""

    twin: PreTrainedModel
    state: dict[str, Tensor] | None
    """Where its weights are spread over processes: all of them, on the main one."""
    adapters: Adapters | None
    """What it was changed by, where that is all that was trained."""


def _is_finite(x: float) -> bool:
    return abs(x) < float("inf")  # false for NaN too
