"""A run of sparsification: twin, dense model, multiplier, data; what a step updates, what a validation measures, what a
snapshot holds. The gradients of a step are computed in `gradients.py`, the loop is `training/trainer.py`.

A run may begin with a layer-wise warm-up (`layerwise.py`); all other steps train the layers jointly.
"""

import json
import math
from dataclasses import asdict, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.data import Data
from edgewise.measure.loss import Measured
from edgewise.training.distributed import clip_gradients, place_teacher
from edgewise.training.diverged import Diverged
from edgewise.training.sparsify.batches import TrainingBatches, micro_batch_size
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.gradients import StepGradients
from edgewise.training.sparsify.head_closing import HeadClosing
from edgewise.training.sparsify.layerwise import STEPS_PER_BATCH
from edgewise.training.sparsify.masks import Mask, threshold_mask
from edgewise.training.sparsify.metrics import StepMetrics
from edgewise.training.sparsify.multiplier import Multiplier
from edgewise.training.sparsify.null_value import INITIAL_THRESHOLD, mean_closed_values, sequences_needed
from edgewise.training.sparsify.penalty import penalty_weights
from edgewise.training.sparsify.recipe import MultiplierRecipe, Recipe, choose_recipe
from edgewise.training.sparsify.schedule import Schedule, ScheduledValues, relaxed_minimum
from edgewise.training.sparsify.start import start_of
from edgewise.training.sparsify.state import SparsifyState
from edgewise.training.sparsify.twin import TrainedTwin, check_fsdp
from edgewise.training.sparsify.validation import Validator

TOLERANCE_SHARE = 0.8
"""Share of the tolerance that the multiplier aims at: what holds on training batches should hold on held-out text too."""


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
        check_fsdp(config, accelerator)
        self.config, self.data, self.accelerator = config, data, accelerator
        self.recipe = recipe or choose_recipe(config.recipe, dense.num_parameters())
        if config.constraint is not None:
            self.recipe = replace(self.recipe, kl_constraint=config.constraint == "loss-and-kl")
        batch_size = config.batch_size or self.recipe.optimizer.batch_size
        micro_batch = micro_batch_size(batch_size, accelerator.num_processes, config.grad_accum)
        self.batches = TrainingBatches(data.train, batch_size, micro_batch)
        start = start_of(dense, self.recipe, config)  # before the dense model may be sharded
        self.dense = place_teacher(dense, accelerator)
        closed = threshold_mask(INITIAL_THRESHOLD, config.sinks)
        is_new = config.start_from is None and not resumed
        self.twin = TrainedTwin(
            start, self.recipe, config, accelerator, self.initial_null_values(closed) if is_new else None
        )
        self.validator = Validator(self.dense, self.twin, data.held_out)
        self.gradients = StepGradients(self.dense, self.twin, self.recipe, self.batches)
        self.learning_rates = self.recipe.optimizer.learning_rates(
            config.lr, subset=config.lora is not None or config.attention_only
        )
        self.layerwise_steps = config.layerwise_tokens // self.batches.tokens
        self.head_closing = HeadClosing(config, self.twin, self.gradients, self.batches)
        self.schedule = Schedule(self.recipe, self.twin.gate, self.learning_rates, self.layerwise_steps)
        multiplier = _initial_multiplier(self.recipe.multiplier, config.loss_tolerance)
        densities = [[1.0] * gate.heads for gate in self.twin.gates]
        self.state = SparsifyState(self.batches.tokens, multiplier=multiplier, density_per_head=densities)

    def initial_null_values(self, mask: Mask) -> list[Tensor] | None:  # a layer: [kv_heads, d]
        """Initial null values, given the edges that stay open; None if the recipe has none."""
        if not self.recipe.gate.null_value:
            return None
        context = self.data.train.context
        batch = self.batches.first(sequences_needed(context) * context)
        return mean_closed_values(self.dense, batch, mask)

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
    def penalty(self) -> Tensor:  # [layers, heads]
        """Weight of each head's density in the loss of the next step."""
        densities = torch.tensor(self.state.density_per_head)
        return penalty_weights(self.recipe, self.state.multiplier.beta, densities)

    def metrics_of(self, sums: Tensor) -> StepMetrics:
        """Metrics of a step, given its terms summed over the processes."""
        return StepMetrics.from_terms(sums, self.twin.gates[0].heads)

    def forward_backward(self) -> Tensor:
        """Gradients of the next batch, clipped; returns this process's terms of the `StepMetrics`, and their norm."""
        if self.layerwise_steps == self.state.step > 0:
            self._end_warmup()
        batch = self.batches.next(repeat=self._repeats_batch)
        terms = self.gradients.compute(batch, self.state.step, self.penalty, self.is_layerwise)
        norm = clip_gradients(self.accelerator, self.twin.model)
        return torch.cat([terms, norm.to(terms)[None]])  # its sum over processes is finite if it is

    def update(self, sums: Tensor) -> StepMetrics:
        """Update weights, thresholds, average and multiplier, given what `forward_backward` returns, summed over the
        processes."""
        state, metrics, norm = self.state, self.metrics_of(sums[:-1]), sums[-1].item()
        if not all(map(math.isfinite, (metrics.ce, metrics.density, norm))):
            raise Diverged("the loss or its gradient is not a number", self)
        if not self.recipe.paired_baseline and not self.is_layerwise:
            metrics = metrics._replace(dense_ce=state.dense_ce)
        scheduled = self.schedule.at(state.step, state.planned_steps)
        self._update_weights(scheduled.lr_factor)
        if scheduled.threshold_bound is not None:
            self.twin.bound_thresholds(scheduled.threshold_bound)
        decay = self._update_average()
        self._update_multiplier(metrics, scheduled, decay)
        self._close_heads()
        state.density_per_head = metrics.density_per_head.tolist()
        return metrics

    def _update_weights(self, lr_factor: float) -> None:
        optimizer = self.twin.optimizer
        for group, peak in zip(optimizer.param_groups, self.learning_rates, strict=False):
            group["lr"] = peak * lr_factor
        optimizer.step()
        optimizer.zero_grad()

    def _update_average(self) -> float | None:
        """Add the weights to the average; returns the decay of the multiplier's moving average, None for its own."""
        average = self.twin.average
        if average is None or self.is_layerwise:
            return None
        share = average.update(self.schedule.averaging_window(self.state.planned_steps))
        # over the same steps, so that the two losses can be compared; but over no fewer than ten
        return 1 - min(share, max(0.1, 1 / average.updates))

    def _update_multiplier(
        self, metrics: StepMetrics, scheduled: ScheduledValues, decay: float | None
    ) -> None:
        tolerance, minimum = self.config.loss_tolerance, scheduled.multiplier_minimum
        if self.config.density is not None:
            relative_density = self.state.held_out_density / self.config.density
            minimum = relaxed_minimum(minimum, self.recipe.multiplier.minimum, relative_density)
        self.state.multiplier.update(
            metrics.ce - metrics.dense_ce,
            TOLERANCE_SHARE * tolerance,
            minimum * tolerance,
            kl=metrics.kl if self.recipe.kl_constraint else None,
            step_size=scheduled.multiplier_step_size,
            decay=decay,
        )

    def _close_heads(self) -> None:
        """Close the heads that are due after this step, if the constraint is kept."""
        if self.is_layerwise or self.state.multiplier.expected > self.config.loss_tolerance:
            return
        step, steps = self.state.step - self.layerwise_steps, self.state.planned_steps - self.layerwise_steps
        self.head_closing.close(step, steps)

    def _end_warmup(self) -> None:
        """Reset what belongs to the layers' own losses: gradients have another scale now, most weights get their first, and
        the loss is no estimate any more."""
        self.twin.optimizer.state.clear()
        self.state.multiplier.reset_gaps()

    @property
    def _repeats_batch(self) -> bool:
        return self.is_layerwise and self.state.step % STEPS_PER_BATCH > 0

    # ------------------------------------------------------------------------------------------------ validation

    def validate(self) -> dict[str, Any]:
        measured = self.validator.measure_twin(self.validator.n_sequences)
        against_dense = measured.against_dense
        assert against_dense is not None
        if not math.isfinite(measured.ce):
            raise Diverged("the held-out loss is not a number", self)
        values = {
            **self._logged_multiplier(),
            "delta_ce": against_dense.delta_ce,
            "held_out_kl": against_dense.kl,
            "delta_ce_error": against_dense.delta_ce_error,
            "held_out_ce": measured.ce,
            "held_out_tokens": measured.tokens,
            "density": measured.density,
            "edges_per_query": measured.edges_per_query,
            "heads_closed": measured.heads_closed,
        }
        self.correct_multiplier(measured)
        if self.config.freeze_closed and self.twin.gate.kappa == 1:
            self.twin.freeze_closed_heads()
            values["heads_frozen"] = sum(map(sum, self.twin.frozen_heads or []))
        return values

    def correct_multiplier(self, measured: Measured) -> None:
        """Correct the multiplier by a validation, if the twin is an average and the warm-up is over."""
        self.state.held_out_density = measured.density
        if self.twin.average is not None and self.state.step > self.layerwise_steps:
            multiplier, against_dense = self.state.multiplier, measured.against_dense
            assert against_dense is not None
            multiplier.loss.correct(against_dense.delta_ce)
            if self.recipe.kl_constraint:
                multiplier.kl.correct(against_dense.kl)

    # ------------------------------------------------------------------------------------------ log and snapshots

    def logged(self, metrics: StepMetrics) -> dict[str, Any]:
        """A step's line of the log."""
        losses = {"ce": metrics.ce, "dense_ce": metrics.dense_ce, "kl": metrics.kl}
        rate = {"learning_rate": self.twin.optimizer.param_groups[0]["lr"]}
        return {**self._logged_multiplier(), **losses, "expected_density": metrics.density, **rate}

    def _logged_multiplier(self) -> dict[str, Any]:
        multiplier = self.state.multiplier
        return {"beta": multiplier.beta, "gap": multiplier.loss.average, "expected_gap": multiplier.expected}

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": self.state.state_dict(),
            "frozen_heads": self.twin.frozen_heads,
            "recipe": asdict(self.recipe),
            "data": {"name": self.data.train.name, "state": self.batches.state_dict(self._repeats_batch)},
            "config": json.loads(json.dumps(asdict(self.config), default=str)),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.state.load_state_dict(saved["state"])
        self.batches.load_state_dict(saved["data"]["state"])
        self.twin.set_frozen_heads(saved.get("frozen_heads"))


def _initial_multiplier(recipe: MultiplierRecipe, tolerance: float) -> Multiplier:
    return Multiplier(
        recipe.initial * tolerance,
        recipe.step_size,
        recipe.minimum * tolerance,
        recipe.maximum * tolerance,
        recipe.damping,
    )
