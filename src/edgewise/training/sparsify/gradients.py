"""The gradients of a step: the distance between twin and dense model, and the sparsity penalty.

A batch is split over the processes, and each process computes its share in micro-batches. A step trains all layers together,
or, in the layer-wise warm-up, each layer's attention by itself (`layerwise.py`).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.data import IGNORE, Batch
from edgewise.gating.edge_gate import mode
from edgewise.gating.tap import tap
from edgewise.measure.evaluation import cross_entropy, parts, run_model, run_rows
from edgewise.training.distributed import count_pairs, share_of
from edgewise.training.sparsify import layerwise
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.objective import compare
from edgewise.training.sparsify.recipe import Recipe
from edgewise.training.sparsify.sampled_softmax import (
    TOKENS,
    Words,
    is_large,
    likely_words,
    only,
    words_of,
)
from edgewise.training.sparsify.twin import TrainedTwin


class Scale(NamedTuple):
    """What turns a micro-batch's sums into terms of the step's loss."""

    n_targets: int
    """Predicted tokens of the step, over all processes."""
    pair_share: float
    """The micro-batch's share of the step's (query, key) pairs."""
    penalty: float
    """Weight of the density."""


class Gradients:
    """Computes the gradients of whole batches; keeps what the next step needs again."""

    def __init__(
        self,
        dense: PreTrainedModel,
        twin: TrainedTwin,
        config: SparsifyConfig,
        recipe: Recipe,
        micro_batch_size: int,
        first_batch: Callable[[int], Batch],
    ):
        """`first_batch(tokens)`: the text that the run began with, from which the Fisher metric and the candidate vocabulary
        are estimated."""
        self.dense, self.twin, self.recipe = dense, twin, recipe
        self.accelerator, self._seed, self._dtype = twin.accelerator, config.seed, config.dtype
        self._micro_batch_size, self._first_batch = micro_batch_size, first_batch
        self._dense_unembedding: Any = dense.get_output_embeddings()
        self.metrics: list[Tensor] | None = None  # a layer: [D, D]
        self.likely: Tensor | None = None
        self._recorded_batch: Batch | None = None
        self._recorded: list[list[layerwise.Passed]] = []  # of each micro-batch of that batch

    def compute(self, batch: Batch, step: int, penalty: float, is_layerwise: bool) -> Tensor:  # -> [3]
        """Forward and backward of a whole step. Returns this process's terms of the twin's loss, of the dense model's, and
        of the density."""
        accelerator, model = self.accelerator, self.twin.model
        n_targets, n_pairs = int((batch.targets != IGNORE).sum()), count_pairs(batch)
        share = share_of(batch, accelerator.process_index, accelerator.num_processes)
        first_sequence = accelerator.process_index * len(share.ids)
        micro_batches = list(parts(share, self._micro_batch_size, accelerator.device))
        recorded = self._record(batch, micro_batches) if is_layerwise else self._forget()
        terms = torch.zeros(3, device=accelerator.device)
        model.train()
        for i, micro_batch in enumerate(micro_batches):
            syncs = i == len(micro_batches) - 1 and not is_layerwise
            scale = Scale(n_targets, count_pairs(micro_batch) / n_pairs, penalty)
            with (
                contextlib.nullcontext() if syncs else accelerator.no_sync(model),
                self._sampling(step, first_sequence + i * self._micro_batch_size),
            ):
                if is_layerwise:
                    terms += self._backward_layerwise(recorded[i], scale)
                else:
                    terms += self._backward_joint(micro_batch, scale, step)
        if is_layerwise and accelerator.num_processes > 1:
            self._sum_gradients()
        return terms

    def autocast(self) -> Any:
        enabled = self._dtype == "bfloat16"
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=enabled)

    def dense_logits(self, micro_batch: Batch, words: Words | None) -> Tensor:  # [batch, t, words]
        with torch.no_grad(), self.autocast(), only(self._dense_unembedding, words):
            return run_model(self.dense, micro_batch)

    def words(self, micro_batch: Batch, step: int) -> tuple[Words | None, Batch]:
        """The candidate vocabulary of a micro-batch, None for all tokens, and the batch with targets counted in it."""
        vocabulary = len(self._dense_unembedding.weight)
        sharded = self.accelerator.distributed_type == DistributedType.FSDP
        if not self.recipe.paired_baseline or sharded or not is_large(vocabulary):
            return None, micro_batch
        if self.likely is None:
            self.likely = likely_words(self.dense, self._first_batch(TOKENS), self._micro_batch_size)
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        return words_of(micro_batch, self.likely, vocabulary, generator)

    def _backward_joint(self, micro_batch: Batch, scale: Scale, step: int) -> Tensor:  # -> [3]
        """All layers together, against the real loss."""
        words, micro_batch = self.words(micro_batch, step)
        with self.autocast(), only(self.twin.unembedding, words), tap(self.twin.inner) as seen:
            logits = run_model(self.twin.model, micro_batch)
        compared = None
        if self.recipe.distillation or self.recipe.paired_baseline:
            dense = self.dense_logits(micro_batch, words)
            compared = compare(logits, dense, micro_batch.targets)
            del dense
        if compared is not None and self.recipe.distillation:
            fit, ce = compared.divergence / scale.n_targets, compared.ce / scale.n_targets
        else:
            fit = ce = cross_entropy(logits, micro_batch.targets) / scale.n_targets
        dense_ce = torch.zeros_like(ce) if compared is None else compared.dense_ce / scale.n_targets
        del logits  # both are as large as their gradient, which comes now
        density = seen.expected_density.mean() * scale.pair_share
        loss = fit + scale.penalty * density
        # DDP and FSDP average over processes; these are terms of a sum
        self.accelerator.backward(loss * self.accelerator.num_processes)
        return torch.stack([ce.detach(), dense_ce.detach(), density.detach()])

    def _backward_layerwise(self, recorded: list[layerwise.Passed], scale: Scale) -> Tensor:  # -> [3]
        """Each layer by itself; the estimated divergence stands for the twin's loss, 0 for the dense model's."""
        if self.metrics is None:
            batch = self._first_batch(layerwise.METRIC_TOKENS)
            self.metrics = layerwise.fisher_metrics(self.dense, batch, self._micro_batch_size, self._seed)
        with self.autocast():
            cost, density = layerwise.backward_layerwise(
                self.twin.inner, recorded, self.metrics, scale.n_targets, scale.penalty, scale.pair_share
            )
        return torch.tensor([cost, 0.0, density], device=self.accelerator.device)

    def _record(self, batch: Batch, micro_batches: list[Batch]) -> list[list[layerwise.Passed]]:
        """Inputs and outputs of the dense model's attention, computed once for all steps on the same batch."""
        if self._recorded_batch is not batch:
            self._forget()
            self._recorded_batch = batch
            for micro_batch in micro_batches:
                with torch.no_grad(), self.autocast(), layerwise.recording(self.dense) as recorded:
                    run_rows(self.dense.base_model, micro_batch)
                self._recorded.append(recorded)
        return self._recorded

    def _forget(self) -> list[list[layerwise.Passed]]:
        self._recorded_batch, self._recorded = None, []
        return self._recorded

    def _sum_gradients(self) -> None:
        """Over processes: DDP sees only what goes through the whole model."""
        for parameter in self.twin.model.parameters():
            if parameter.grad is not None:
                parameter.grad = self.accelerator.reduce(parameter.grad, "sum")  # pyright: ignore

    @contextlib.contextmanager
    def _sampling(self, step: int, first_sequence: int) -> Iterator[None]:
        """Gate noise seeded by step, layer and sequence: the same in one process or many, before and after a resume."""
        gates = self.twin.gates
        for gate in gates:
            seed = (self._seed * 1_000_003 + step) * len(gates) + gate.layer
            gate.noise = (seed, first_sequence)
        try:
            with mode(self.twin.inner, "sample" if self.recipe.gate.sampled else "deterministic"):
                yield
        finally:
            for gate in gates:
                gate.noise = None
