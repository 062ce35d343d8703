"""The gradients of a step: the distance between twin and dense model, and the sparsity penalty.

A batch is split over the processes, and each process computes its share in micro-batches. A step trains all layers jointly,
or, in the layer-wise warm-up, each layer's attention by itself (`layerwise.py`).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.core.devices import upload
from edgewise.data import IGNORE, Batch
from edgewise.gating.edge_gate import mode
from edgewise.gating.tap import tap
from edgewise.measure.distillation import DistillationTerms, distillation_terms
from edgewise.measure.forward import run_model
from edgewise.measure.loss import cross_entropy
from edgewise.training.distributed import count_pairs, share_of
from edgewise.training.sparsify.batches import TrainingBatches
from edgewise.training.sparsify.layerwise import LayerwiseGradients
from edgewise.training.sparsify.metrics import Scale, step_terms
from edgewise.training.sparsify.recipe import Recipe
from edgewise.training.sparsify.sampled_softmax import Candidates, CandidateSampler, restricted_to
from edgewise.training.sparsify.twin import TrainedTwin


class StepGradients:
    """Computes the gradients of whole batches."""

    def __init__(self, dense: PreTrainedModel, twin: TrainedTwin, recipe: Recipe, batches: TrainingBatches):
        """`batches`: their first text is what the Fisher metric and the candidate vocabulary are estimated from."""
        self.dense, self.twin, self.recipe = dense, twin, recipe
        self.accelerator, self._seed = twin.accelerator, twin.config.seed
        self._micro_batch_size = batches.micro_batch_size
        self._dense_unembedding: Any = dense.get_output_embeddings()
        self.sampler = CandidateSampler(dense, batches, self._seed)
        self.layerwise = LayerwiseGradients(dense, twin, batches, self._seed)

    def no_terms(self) -> Tensor:
        """Terms of the `StepMetrics` of no text at all."""
        zero = torch.zeros((), device=self.accelerator.device)
        return step_terms(zero, zero, zero, zero.expand(len(self.twin.gates), self.twin.gates[0].heads))

    def compute(self, batch: Batch, step: int, penalty: Tensor, is_layerwise: bool) -> Tensor:
        """Forward and backward of a whole step; returns this process's terms of the `StepMetrics`.

        `penalty`: weight of each head's density, [layers, heads].
        """
        accelerator, model = self.accelerator, self.twin.model
        n_targets, n_pairs = int((batch.targets != IGNORE).sum()), count_pairs(batch)
        share = share_of(batch, accelerator.process_index, accelerator.num_processes)
        first_sequence = accelerator.process_index * len(share.ids)
        micro_batches = list(share.micro_batches(self._micro_batch_size))
        if is_layerwise:
            self.layerwise.record(batch, micro_batches)
        else:
            self.layerwise.forget()
        terms, penalty = self.no_terms(), upload(penalty, accelerator.device)
        model.train()
        for i, micro_batch in enumerate(micro_batches):
            syncs = i == len(micro_batches) - 1 and not is_layerwise
            scale = Scale(n_targets, count_pairs(micro_batch) / n_pairs, penalty)
            with (
                contextlib.nullcontext() if syncs else accelerator.no_sync(model),
                self._sampled_gates(step, first_sequence + i * self._micro_batch_size),
            ):
                if is_layerwise:
                    terms += self.layerwise.backward(i, scale)
                else:
                    terms += self._backward(micro_batch, scale, step)
        if is_layerwise and accelerator.num_processes > 1:
            self._sum_gradients()
        return terms

    def _backward(self, micro_batch: Batch, scale: Scale, step: int) -> Tensor:  # -> terms of StepMetrics
        """Backward of a micro-batch, which is on the CPU, through all layers, against the real loss."""
        candidates, micro_batch = self.candidates(micro_batch, step)
        micro_batch = micro_batch.to(self.accelerator.device)
        with (
            self.twin.autocast(),
            restricted_to(self.twin.unembedding, candidates),
            tap(self.twin.inner) as tapped,
        ):
            logits = run_model(self.twin.model, micro_batch)
        fit, terms = self._fit(logits, micro_batch, candidates)
        del logits  # as large as their gradient, which comes now
        density = tapped.expected_density * scale.pair_share  # [layers, heads]
        loss = fit / scale.n_targets + (scale.penalty * density).mean()
        # DDP and FSDP average over processes; these are terms of a sum
        self.accelerator.backward(loss * self.accelerator.num_processes)
        kl, ce, dense_ce = (term / scale.n_targets for term in terms)
        return step_terms(ce, dense_ce, kl, density)

    def _fit(
        self, logits: Tensor, micro_batch: Batch, candidates: Candidates | None
    ) -> tuple[Tensor, DistillationTerms]:
        """The recipe's fit, and how the two models compare, as sums over positions; 0 where the recipe does not need the
        dense model."""
        recipe = self.recipe
        if not (recipe.distillation or recipe.paired_baseline or recipe.kl_constraint):
            ce = cross_entropy(logits, micro_batch.targets)
            zero = torch.zeros_like(ce)
            return ce, DistillationTerms(zero, ce.detach(), zero)
        terms = distillation_terms(logits, self.dense_logits(micro_batch, candidates), micro_batch.targets)
        fit = terms.kl if recipe.distillation else cross_entropy(logits, micro_batch.targets)
        return fit, terms

    def dense_logits(self, micro_batch: Batch, candidates: Candidates | None) -> Tensor:
        """The dense model's logits, [batch, t, candidates]."""
        with torch.no_grad(), self.twin.autocast(), restricted_to(self._dense_unembedding, candidates):
            return run_model(self.dense, micro_batch)

    def candidates(self, micro_batch: Batch, step: int) -> tuple[Candidates | None, Batch]:
        """The candidate vocabulary of a micro-batch, None for all tokens, and the batch with targets as indices into it.

        The micro-batch stays on the CPU, where the size of the vocabulary is known without waiting for a device.
        """
        if (
            not self.recipe.paired_baseline
            or self.accelerator.distributed_type == DistributedType.FSDP  # weights are sharded
        ):
            return None, micro_batch
        candidates, micro_batch = self.sampler.draw(micro_batch, step)
        return None if candidates is None else candidates.to(self.accelerator.device), micro_batch

    def _sum_gradients(self) -> None:
        """Sum over processes: DDP sees only gradients that go through the whole model."""
        for parameter in self.twin.model.parameters():
            if parameter.grad is not None:
                parameter.grad = self.accelerator.reduce(parameter.grad, "sum")  # pyright: ignore

    @contextlib.contextmanager
    def _sampled_gates(self, step: int, first_sequence: int) -> Iterator[None]:
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
