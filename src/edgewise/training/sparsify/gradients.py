"""The gradient of a step: how far the twin is from the dense model, and the pressure on its edges.

Rows are shared out over the processes, and each process takes its own in parts. A step is of all layers together, or of each
layer by itself (`layerwise.py`).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.data import IGNORE, Batch
from edgewise.gating.edge_gate import gates_of, mode
from edgewise.gating.tap import tap
from edgewise.measure.evaluation import cross_entropy, parts, run_model, run_rows
from edgewise.training.sharding import pairs_of, share_of
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


class Gradients:
    """What a step needs besides its rows, and what it keeps for the next: the metric of layers alone, the likely words."""

    def __init__(
        self,
        dense: PreTrainedModel,
        model: nn.Module,
        unembedding: nn.Module,
        config: SparsifyConfig,
        recipe: Recipe,
        accelerator: Accelerator,
        micro_batch_size: int,
        first_rows: Callable[[int], Batch],
    ):
        """`model` is the twin as it is trained, inside peft, DDP or FSDP, and `unembedding` its own; `first_rows` gives so
        many tokens of the text that the run began with."""
        self.dense, self.model, self.config, self.recipe = dense, model, config, recipe
        self.accelerator, self.micro_batch_size, self.first_rows = accelerator, micro_batch_size, first_rows
        self.gates = gates_of(self.inner)
        self.metrics: list[Tensor] | None = None
        self.likely: Tensor | None = None
        self._unembeddings: list[Any] = [dense.get_output_embeddings(), unembedding]
        self._recorded_of: Batch | None = None
        self._recorded: dict[int, list[layerwise.Passed]] = {}
        """By the part of that batch."""

    @property
    def inner(self) -> nn.Module:
        """The model inside DDP or FSDP, still inside peft."""
        return self.accelerator.unwrap_model(self.model)

    def compute(self, batch: Batch, step: int, pressure: float, is_layerwise: bool) -> Tensor:  # -> [3]
        """Forward and backward of a whole step. Gives the twin's loss, the dense model's and the density: this process's
        share of each."""
        device = self.accelerator.device
        asked = int((batch.targets != IGNORE).sum())
        all_pairs = pairs_of(batch)
        mine = share_of(batch, self.accelerator.process_index, self.accelerator.num_processes)
        first_row = self.accelerator.process_index * len(mine.ids)
        pieces = list(parts(mine, self.micro_batch_size, device))
        sums = torch.zeros(3, device=device)
        self.model.train()
        for i, part in enumerate(pieces):
            sync = i == len(pieces) - 1 and not is_layerwise
            share = pairs_of(part) / all_pairs
            with (
                contextlib.nullcontext() if sync else self.accelerator.no_sync(self.model),
                self._sampling(step, first_row + i * self.micro_batch_size),
            ):
                if is_layerwise:
                    sums += self._backward_layerwise(self._passed(batch, i, part), asked, share, pressure)
                else:
                    sums += self._backward_together(part, asked, share, pressure, step)
        if (
            is_layerwise and self.accelerator.num_processes > 1
        ):  # DDP sees only what goes through the whole model
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad = self.accelerator.reduce(parameter.grad, "sum")  # pyright: ignore
        return sums

    def forget(self) -> None:
        """What was kept of a batch: it will not come again."""
        self._recorded_of, self._recorded = None, {}

    def dense_logits(self, part: Batch, words: Words | None) -> Tensor:  # [rows, t, words]
        with torch.no_grad(), self.autocast(), only(self._unembeddings[0], words):
            return run_model(self.dense, part)

    def autocast(self) -> Any:
        on = self.config.dtype == "bfloat16"
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=on)

    def words(self, part: Batch, step: int) -> tuple[Words | None, Batch]:
        """The words whose logits are computed, None for all, and the batch with its targets among them."""
        vocabulary = len(self._unembeddings[0].weight)
        sharded = self.accelerator.distributed_type == DistributedType.FSDP
        if not self.recipe.paired_baseline or sharded or not is_large(vocabulary):
            return None, part
        if self.likely is None:
            self.likely = likely_words(self.dense, self.first_rows(TOKENS), self.micro_batch_size)
        draw = torch.Generator().manual_seed(self.config.seed * 1_000_003 + step)
        return words_of(part, self.likely, vocabulary, draw)

    def _backward_together(
        self, part: Batch, asked: int, share: float, pressure: float, step: int
    ) -> Tensor:  # -> [3]
        words, part = self.words(part, step)
        with self.autocast(), only(self._unembeddings[1], words), tap(self.inner) as seen:
            logits = run_model(self.model, part)
        compared = None
        if self.recipe.distillation or self.recipe.paired_baseline:
            dense = self.dense_logits(part, words)
            compared = compare(logits, dense, part.targets)
            del dense
        if compared is not None and self.recipe.distillation:
            fit, ce = compared.divergence / asked, compared.ce / asked
        else:
            fit = ce = cross_entropy(logits, part.targets) / asked
        dense_ce = torch.zeros_like(ce) if compared is None else compared.dense_ce / asked
        del logits  # both are as large as their gradient, which comes now
        density = seen.expected_density.mean() * share
        loss = fit + pressure * density
        # DDP and FSDP average over processes; these are shares of a sum
        self.accelerator.backward(loss * self.accelerator.num_processes)
        return torch.stack([ce.detach(), dense_ce.detach(), density.detach()])

    def _backward_layerwise(
        self, seen: list[layerwise.Passed], asked: int, share: float, pressure: float
    ) -> Tensor:  # -> [3]
        """The estimated cost stands for the loss, and 0 for the dense model's."""
        if self.metrics is None:
            rows = self.first_rows(layerwise.METRIC_TOKENS)
            self.metrics = layerwise.fisher_metrics(self.dense, rows, self.micro_batch_size, self.config.seed)
        with self.autocast():
            cost, density = layerwise.backward_layerwise(
                self.inner, seen, self.metrics, asked, pressure, share
            )
        return torch.tensor([cost, 0.0, density], device=self.accelerator.device)

    def _passed(self, batch: Batch, place: int, part: Batch) -> list[layerwise.Passed]:
        """What passes through the dense model's attention, computed once for each batch: layers alone go over it again."""
        if self._recorded_of is not batch:
            self._recorded_of, self._recorded = batch, {}
        found = self._recorded
        if place not in found:
            with torch.no_grad(), self.autocast(), layerwise.recording(self.dense) as found[place]:
                run_rows(self.dense.base_model, part)
        return found[place]

    @contextlib.contextmanager
    def _sampling(self, step: int, first_row: int) -> Iterator[None]:
        """Noise that belongs to a step, a layer and a row: the same in one process or many, before and after a resume."""
        for each in self.gates:
            seed = (self.config.seed * 1_000_003 + step) * len(self.gates) + each.layer
            each.noise = (seed, first_row)
        try:
            with mode(self.inner, "sample" if self.recipe.gate.sampled else "deterministic"):
                yield
        finally:
            for each in self.gates:
                each.noise = None
