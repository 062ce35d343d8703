"""A run of sparsification: twin, dense model, multiplier, data; what a step updates, what a validation measures, what a
snapshot holds. The gradients of a step are computed in `gradients.py`, the loop is `training/trainer.py`.

A run may begin with a layer-wise warm-up (`layerwise.py`); all other steps train the layers together.
"""

import contextlib
import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.data import Data
from edgewise.measure.evaluation import Measured, vocabulary_of
from edgewise.training.averaging import Average
from edgewise.training.config import TrainerConfig
from edgewise.training.data import is_slow
from edgewise.training.distributed import measure_together
from edgewise.training.diverged import Diverged
from edgewise.training.sparsify import layerwise
from edgewise.training.sparsify.batches import TrainingBatches
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.gradients import Gradients
from edgewise.training.sparsify.null_value import LITTLE, Mask, above, mean_unattended, rows_to_read
from edgewise.training.sparsify.objective import (
    Multiplier,
    ceiling,
    least_pressure,
    let_go,
    schedule,
)
from edgewise.training.sparsify.recipe import Recipe, choose_recipe
from edgewise.training.sparsify.twin import FinishedTwin, TrainedTwin
from edgewise.training.state import TrainingState

LONGEST_HORIZON = 4000
"""Steps that averages and the multiplier are spread over, at most."""
TOLERANCE_SHARE = 0.8
"""Share of the tolerance that the multiplier aims at: what holds on training batches should hold on held-out text too."""


@dataclass
class SparsifyState(TrainingState):
    multiplier: Multiplier = field(kw_only=True)
    density: float = 1.0
    """Expected density of the last step, which a relative penalty is relative to."""
    held_out_density: float = 1.0
    """At the last validation."""
    dense_ce: float = math.nan
    """The dense model's loss on all held-out text."""


class StepMetrics(NamedTuple):
    """Of one step, over all processes."""

    ce: float
    dense_ce: float
    """Of the dense model on the same batch; the held-out loss where the recipe's target is fixed."""
    density: float
    """Expected, on the training batch."""


class ScheduledValues(NamedTuple):
    """What the schedule says of a step."""

    rate: float
    """Share of the highest learning rates."""
    least_multiplier: float
    """In tolerances."""


class ValidationText(NamedTuple):
    """What validations are measured on: the first held-out sequences, and the dense model's loss on the same ones, because
    a part of the text is easier or harder than all of it."""

    n_sequences: int
    dense_ce: float


class SparsifyRun:
    """All that a run needs, and nothing of how it is shown."""

    def __init__(
        self,
        dense: PreTrainedModel,
        data: Data,
        config: SparsifyConfig,
        accelerator: Accelerator,
        recipe: Recipe | None = None,
        resumed: bool = False,
    ):
        """`recipe`: None for the one that the config names, for a model of this size. `resumed`: whether the state will be
        loaded from a snapshot."""
        self.config, self.data, self.accelerator = config, data, accelerator
        self.recipe = recipe or choose_recipe(config.recipe, dense.num_parameters())
        self.batch_size = config.batch_size or self.recipe.optimizer.batch_size
        self._check_devices()
        self.micro_batch_size = self.batch_size // (accelerator.num_processes * config.grad_accum)
        self.batches = TrainingBatches(data.train, self.batch_size)
        self.dense = dense.to(accelerator.device).eval()  # pyright: ignore
        self.gate = self.recipe.gate_config(config.gate, config.b, config.sinks)
        null_values = None if resumed else self.mean_unattended(above(LITTLE, self.gate.sinks))
        self.twin = TrainedTwin(self.dense, self.gate, null_values, config, accelerator)
        self.learning_rates = self.recipe.optimizer.learning_rates(
            config.lr, subset=config.lora is not None or config.attention_only
        )
        self.average = self._make_average()
        self.gradients = Gradients(
            self.dense, self.twin, config, self.recipe, self.micro_batch_size, self.batches.first
        )
        self.state = SparsifyState(self.batch_size * data.train.context, multiplier=self._make_multiplier())
        self.layerwise_steps = config.layerwise_tokens // self.state.tokens_per_step
        self.validation_text = ValidationText(len(data.held_out.ids), math.nan)

    def _check_devices(self) -> None:
        config, processes = self.config, self.accelerator.num_processes
        if self.batch_size % (processes * config.grad_accum):
            raise EdgewiseError(
                f"`batch_size={self.batch_size}` cannot be split evenly over {processes} processes x "
                f"{config.grad_accum} micro-batches"
            )
        if self.accelerator.distributed_type == DistributedType.FSDP:
            if config.lora is not None:
                raise EdgewiseError(
                    "`lora` does not go together with FSDP: adapters cannot be merged into sharded weights"
                )
            if config.layerwise_warmup:
                raise EdgewiseError(
                    "`layerwise_warmup` does not go together with FSDP: layers are not called through it"
                )

    def _make_average(self) -> Average | None:
        """The average that will be the twin. With FSDP, snapshots would hold one process's shards of it."""
        if (
            not self.recipe.optimizer.averaged_fraction
            or self.accelerator.distributed_type == DistributedType.FSDP
        ):
            return None
        average = Average(p for p in self.model.parameters() if p.requires_grad)
        average.add_to_snapshots(self.accelerator)
        return average

    def _make_multiplier(self) -> Multiplier:
        recipe, tolerance = self.recipe.multiplier, self.config.loss_tolerance
        return Multiplier(
            recipe.initial * tolerance,
            recipe.step_size,
            recipe.minimum * tolerance,
            recipe.maximum * tolerance,
            recipe.damping,
        )

    @property
    def model(self) -> nn.Module:
        """The twin inside peft, DDP or FSDP."""
        return self.twin.model

    def mean_unattended(self, mask: Mask) -> list[Tensor] | None:
        """Where null values start, given the edges that stay; None if the recipe has none."""
        if not self.recipe.gate.null_value:
            return None
        context = self.data.train.context
        return mean_unattended(self.dense, self.batches.first(rows_to_read(context) * context), mask)

    # ------------------------------------------------------------------------------------------------------ a step

    @property
    def is_layerwise(self) -> bool:
        """Whether the next step belongs to the layer-wise warm-up."""
        return self.state.step < self.layerwise_steps

    @property
    def predicts_pace(self) -> bool:
        return not self.is_layerwise

    @property
    def changes_pace(self) -> bool:
        return self.state.step == self.layerwise_steps

    @property
    def penalty(self) -> float:
        """Weight of the density in the loss: beta, or beta over the present density if the penalty is relative."""
        beta = self.state.multiplier.beta
        return beta / max(self.state.density, 1e-6) if self.recipe.log_density else beta

    def forward_backward(self) -> Tensor:  # -> [3]: ce, dense ce, density
        if self.layerwise_steps == self.state.step > 0:
            self._end_warmup()
        batch = self.batches.next(repeat=self._repeats_batch)
        return self.gradients.compute(batch, self.state.step, self.penalty, self.is_layerwise)

    def update(self, sums: Tensor) -> StepMetrics:  # [3]
        metrics, scheduled = StepMetrics(*sums.tolist()), self.scheduled
        if not self.recipe.paired_baseline and not self.is_layerwise:
            metrics = metrics._replace(dense_ce=self.state.dense_ce)
        self._update_weights(metrics, scheduled.rate)
        self._lower_threshold_ceiling()
        memory = self._update_average()
        self._update_multiplier(metrics, scheduled.least_multiplier, memory)
        self.state.density = metrics.density
        return metrics

    def _update_weights(self, metrics: StepMetrics, rate: float) -> None:
        optimizer = self.twin.optimizer
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        if not all(map(math.isfinite, (metrics.ce, metrics.density, 0.0 if norm is None else float(norm)))):
            raise Diverged("the loss or its gradient is not a number", self)
        for group, highest in zip(optimizer.param_groups, self.learning_rates, strict=False):
            group["lr"] = highest * rate
        optimizer.step()
        optimizer.zero_grad()

    def _update_multiplier(self, metrics: StepMetrics, least: float, memory: float | None) -> None:
        """`least`: the lowest beta allowed, in tolerances. `memory`: as of `_update_average`."""
        tolerance, multiplier = self.config.loss_tolerance, self.state.multiplier
        if self.config.density is not None:
            relative_density = self.state.held_out_density / self.config.density
            least = let_go(least, self.recipe.multiplier.minimum, relative_density)
        multiplier.update(
            metrics.ce - metrics.dense_ce,
            TOLERANCE_SHARE * tolerance,
            least * tolerance,
            speed=self.multiplier_speed,
            memory=memory,
        )

    def _update_average(self) -> float | None:
        """Add the weights to the average; returns the share of the old gap that the multiplier's moving average keeps."""
        if self.average is None or self.is_layerwise:
            return None
        share = self.average.update(self.recipe.optimizer.averaged_fraction * self.horizon)
        # over the same steps, so that the two losses can be compared; but over no fewer than ten
        return 1 - min(share, max(0.1, 1 / self.average.updates))

    @property
    def multiplier_speed(self) -> float:
        """Largest relative change of the multiplier's level in the next step."""
        recipe = self.recipe.multiplier
        if recipe.max_change is None or self.is_layerwise:
            return recipe.step_size
        return min(recipe.step_size, recipe.max_change / self.horizon)

    @property
    def horizon(self) -> int:
        """Joint steps that averages and the multiplier are spread over: those of a very long run need no more."""
        return min(self.state.planned_steps - self.layerwise_steps, LONGEST_HORIZON)

    @property
    def scheduled(self) -> ScheduledValues:
        """The recipe's schedule, over the joint steps. In the layer-wise warm-up, rates warm up and the multiplier may fall:
        beyond the tolerance the estimated loss is far too low, and what it allows is not made up for."""
        optimizer, multiplier, state = self.recipe.optimizer, self.recipe.multiplier, self.state
        step, steps = state.step - self.layerwise_steps, state.planned_steps - self.layerwise_steps
        if step < 0:
            rate = schedule(state.step, state.planned_steps, optimizer.warmup_steps, 0.0)
            return ScheduledValues(rate, multiplier.minimum)
        rate = schedule(step, steps, optimizer.warmup_steps, optimizer.decay_fraction)
        least = least_pressure(
            step / steps, multiplier.hold_fraction, multiplier.hold_minimum, multiplier.minimum
        )
        return ScheduledValues(rate, least)

    def _end_warmup(self) -> None:
        """Drop what belongs to the layers' own losses: gradients have another size now, most weights get their first, and
        the loss is real."""
        self.twin.optimizer.state.clear()
        self.state.multiplier.gap = self.state.multiplier.correction = None

    @property
    def _repeats_batch(self) -> bool:
        return self.is_layerwise and self.state.step % layerwise.UPDATES > 0

    @torch.no_grad()
    def _lower_threshold_ceiling(self) -> None:
        """Close attention spread over many keys, little by little: no threshold may stay above a falling ceiling."""
        recipe, start = self.recipe.gate, self.gate.b
        if recipe.b_bound is None or not self.gate.learned:
            return
        step = self.state.step - self.layerwise_steps
        steps = self.state.planned_steps - self.layerwise_steps
        # as slowly as thresholds move
        closing = recipe.b_bound_steps * self.recipe.optimizer.threshold_lr / self.learning_rates[1]
        end = min(recipe.b_bound, start) if steps >= 2 * closing else start
        highest = ceiling(max(0, step), start, end, closing)
        for gate in self.twin.gates:
            gate.b.clamp_(max=highest)

    # ------------------------------------------------------------------------------------------------ validation

    def choose_validation_text(self, trainer: TrainerConfig) -> None:
        """Decide on how much held-out text validations are measured."""
        tokens = trainer.validation_tokens // (4 if is_slow(self.dense, trainer) else 1)
        if self.average is not None:
            tokens = max(
                tokens,
                round(trainer.validation_share * self.state.planned_steps * self.state.tokens_per_step),
            )
        n_sequences = max(self.accelerator.num_processes, tokens // self.data.train.context)
        if n_sequences >= len(self.data.held_out.ids):
            self.validation_text = ValidationText(len(self.data.held_out.ids), self.state.dense_ce)
        else:
            self.validation_text = ValidationText(n_sequences, self.measure_dense(n_sequences).ce)

    def validate(self) -> dict[str, Any]:
        n_sequences, dense_ce = self.validation_text
        measured = self.measure_twin(n_sequences)
        if not math.isfinite(measured.ce):
            raise Diverged("the held-out loss is not a number", self)
        values = {
            **self._logged_multiplier(),
            "delta_ce": measured.ce - dense_ce,
            "held_out_ce": measured.ce,
            "held_out_tokens": measured.tokens,
            "density": measured.density,
            "edges_per_query": measured.edges_per_query,
        }
        self.correct_multiplier(measured, dense_ce)
        return values

    def correct_multiplier(self, measured: Measured, dense_ce: float) -> None:
        """Let the multiplier go by a validation, if the twin is an average and the warm-up is over."""
        self.state.held_out_density = measured.density
        if self.average is not None and self.state.step > self.layerwise_steps:
            self.state.multiplier.correct(measured.ce - dense_ce)

    def measure_twin(self, n_sequences: int | None = None) -> Measured:
        """The twin as it would be saved, gates deterministic, on the first held-out sequences or on all."""
        with self.average.applied() if self.average is not None else contextlib.nullcontext():
            return self._measure(self.model, n_sequences)

    def measure_dense(self, n_sequences: int | None = None) -> Measured:
        return self._measure(self.dense, n_sequences)

    def _measure(self, model: nn.Module, n_sequences: int | None) -> Measured:
        batch = self.data.held_out.select(slice(n_sequences))
        with self.gradients.autocast():
            return measure_together(model, batch, self.accelerator, vocabulary_of(self.dense))

    # ------------------------------------------------------------------------------------------ log and snapshots

    def logged(self, metrics: StepMetrics) -> dict[str, Any]:
        """A step's line of the log."""
        losses = {"ce": metrics.ce, "dense_ce": metrics.dense_ce, "expected_density": metrics.density}
        return {**self._logged_multiplier(), **losses}

    def _logged_multiplier(self) -> dict[str, Any]:
        multiplier = self.state.multiplier
        return {"beta": multiplier.beta, "gap": multiplier.gap, "expected_gap": multiplier.expected}

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": self.state.state_dict(),
            "recipe": asdict(self.recipe),
            "data": {"name": self.data.train.name, "state": self.batches.state_dict(self._repeats_batch)},
            "config": json.loads(json.dumps(asdict(self.config), default=str)),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.state.load_state_dict(saved["state"])
        self.batches.load_state_dict(saved["data"]["state"])

    def finish(self) -> FinishedTwin:
        """The twin to save; nothing is trained after that."""
        if self.average is not None:
            self.average.swap()
            self.average = None
        return self.twin.finish()
