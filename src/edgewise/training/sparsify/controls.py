"""Controls: is it the learned gates, or would any mask of that density do? And is it the mask, or just more training?

Every control starts from the same dense weights and is measured on the same held-out sequences as the twin.

    threshold       training-free: drop each edge whose attention weight is below t, for several t
    random          a fixed random mask with the twin's density in each head
    top-k           for each head and query the k largest attention weights, the same k everywhere: the twin's mean
    top-k of layers in each layer and for each query the k largest over all heads, k as in that layer of the twin: how many
                    edges a layer needs is then something that the learned gates have found
    dense           no mask at all: what the same budget of training on the text gains by itself

Masks are measured as they are, and behind them the dense model is post-trained as the twin was: all weights or adapters,
with its budget, fit and learning rates; then also compared with the dense model, by loss difference and KL. The results
are kept in `controls/`. Controls that were interrupted go on with `--resume --controls`.
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from edgewise.data import IGNORE, Batch
from edgewise.gating.config import GateConfig
from edgewise.measure.distillation import distillation_terms
from edgewise.measure.forward import run_model
from edgewise.measure.loss import Measured, cross_entropy, measure
from edgewise.measure.reference import Reference
from edgewise.models.gate import gate
from edgewise.training.averaging import Average
from edgewise.training.snapshot import FOLDER, explained
from edgewise.training.sparsify.control_store import control_folder, save_control
from edgewise.training.sparsify.masks import (
    TOP_K,
    Mask,
    masked,
    measure_masked,
    random_mask,
    threshold_mask,
)
from edgewise.training.sparsify.null_value import set_null_values, with_null_values
from edgewise.training.sparsify.parameters import as_trained
from edgewise.training.sparsify.sampled_softmax import restricted_to
from edgewise.training.sparsify.schedule import learning_rate_factor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from edgewise.core.console import Display
    from edgewise.training.sparsify.run import SparsifyRun

THRESHOLDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


def run_controls(
    run: "SparsifyRun", twin: Measured, display: "Display", finished: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Run all controls that are not yet finished, on the run's text from its beginning; yields all results after each, so
    that they can be saved."""
    context, held_out = run.data.train.context, run.data.held_out
    reference = Reference(run.dense)
    masks: dict[str, Mask | None] = {
        **{name: make(twin.edges_per_query_per_head) for name, make in TOP_K.items()},
        "random": random_mask(twin.density_per_head, context, run.config.seed),
        "dense": None,
    }
    results: dict[str, Any] = finished or {
        "threshold": measure_thresholds(run.dense, held_out, run.initial_null_values)
    }
    for name, mask in masks.items():
        if f"{name}, trained" in results:
            continue
        null_values = None if mask is None else run.initial_null_values(mask)
        if mask is not None:
            with with_null_values(run.dense, null_values):
                results[f"{name}, untrained"] = measure_masked(run.dense, mask, held_out)
        display.print(f"control: {name}, trained for {run.state.step:,} steps")
        run.data.train.load_state_dict(run.batches.first_state)
        model = train_masked(run, mask, display, null_values)
        if mask is not None:
            with explained(run.config.out / FOLDER, "a control"):
                folder = control_folder(run.config.out, name)
                save_control(folder, model, name, twin, context, run.config.seed)
        results[f"{name}, trained"] = measure_masked(model, mask, held_out, reference)
        yield results


def measure_thresholds(
    dense: "PreTrainedModel",
    held_out: Batch,
    initial_null_values: Callable[[Mask], list[Tensor] | None],
) -> list[dict[str, float]]:
    """Density and held-out loss of the dense model with edges below several thresholds closed, without training."""
    points = []
    for threshold in THRESHOLDS:
        model = gate(copy.deepcopy(dense), GateConfig("relative", b=-math.log(threshold)))
        set_null_values(model, initial_null_values(threshold_mask(threshold)))
        measured = measure(model, held_out)
        points.append({"threshold": threshold, "density": measured.density, "ce": measured.ce})
    return points


def train_masked(
    run: "SparsifyRun", mask: Mask | None, display: "Display", null_values: list[Tensor] | None
) -> "PreTrainedModel":
    """Post-train the dense model behind a mask as the twin was: the same parameters, fit, candidate vocabulary, learning
    rates, batches, precision, steps and averaging. `null_values` are initial ones, if the twin has them, so that the two
    differ in their edges only."""
    recipe, steps = run.recipe.optimizer, run.state.step
    model, unembedding = _model_to_train(run, null_values)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=run.learning_rates[0], betas=(0.9, 0.98), weight_decay=0.0)
    average = Average(trained) if recipe.averaged_fraction else None
    window = run.schedule.averaging_window(run.state.planned_steps)
    with display.bar("control", steps) as advance:
        for step in range(steps):
            factor = learning_rate_factor(step, steps, recipe.warmup_steps, recipe.decay_fraction)
            optimizer.param_groups[0]["lr"] = run.learning_rates[0] * factor
            _backward_masked(run, model, unembedding, mask, step)
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if average is not None:
                average.update(window)
            advance(1)
    if average is not None:
        average.swap()
    return (model if run.config.lora is None else model.merge_and_unload()).eval()  # pyright: ignore


def _model_to_train(run: "SparsifyRun", null_values: list[Tensor] | None) -> tuple[nn.Module, nn.Module]:
    """A copy of the dense model, without dropout, with gradients for what the run trains; and its unembedding."""
    copied: Any = copy.deepcopy(run.dense).float()  # pyright: ignore
    set_null_values(copied, null_values)
    unembedding = copied.get_output_embeddings()
    model = as_trained(copied, run.config).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model, unembedding


def _backward_masked(
    run: "SparsifyRun", model: nn.Module, unembedding: nn.Module, mask: Mask | None, step: int
) -> None:
    """Gradients of the next batch: KL from the dense model, or cross-entropy as the recipe says. Without a mask the dense
    model cannot learn from itself, so it learns from the text."""
    batch = run.data.train.take(run.batches.batch_size)
    n_targets = (batch.targets != IGNORE).sum().item()
    for micro_batch in batch.micro_batches(run.batches.micro_batch_size):
        candidates, micro_batch = run.gradients.candidates(micro_batch, step)
        micro_batch = micro_batch.to(run.accelerator.device)
        with masked(model, mask), run.twin.autocast(), restricted_to(unembedding, candidates):
            logits = run_model(model, micro_batch)
        if run.recipe.distillation and mask is not None:
            dense_logits = run.gradients.dense_logits(micro_batch, candidates)
            loss = distillation_terms(logits, dense_logits, micro_batch.targets).kl
        else:
            loss = cross_entropy(logits, micro_batch.targets)
        (loss / n_targets).backward()
