"""The twin in training: the gated copy of the dense model, prepared for one device or many, with optimizer and average."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gates_of
from edgewise.models.lora import Adapters
from edgewise.training.averaging import Average
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.null_value import set_null_values
from edgewise.training.sparsify.parameters import as_trained, can_fuse, parameter_groups
from edgewise.training.sparsify.recipe import Recipe
from edgewise.training.sparsify.start import Start

FROZEN_BELOW = -6.0
"""Offset b below which heads are frozen: even an edge of weight 1 would open in 1 of 400 samples only."""
_CLOSED_B = -10.0
"""Offset b of a head that is closed for good."""

# at every snapshot it would say that tied weights are saved once
logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)


class FinishedTwin(NamedTuple):
    model: PreTrainedModel
    weights: dict[str, Tensor] | None
    """Where the weights are sharded over processes: all of them, on the main one."""
    adapters: Adapters | None
    """The LoRA adapters that were merged into the model."""

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict() if self.weights is None else self.weights


def check_fsdp(config: SparsifyConfig, accelerator: Accelerator) -> None:
    """Refuse what cannot be done with sharded weights."""
    if accelerator.distributed_type != DistributedType.FSDP:
        return
    if config.lora is not None:
        raise EdgewiseError(
            "`lora` does not go together with FSDP: adapters cannot be merged into sharded weights"
        )
    if config.layerwise_warmup:
        raise EdgewiseError(
            "`layerwise_warmup` does not go together with FSDP: layers are not called through it"
        )
    if config.controls:
        raise EdgewiseError(
            "`controls` does not go together with FSDP: they are run by one process, and the dense model is sharded"
        )
    if config.freeze_closed or config.close_heads is not None:
        name = "freeze_closed" if config.freeze_closed else "close_heads"
        raise EdgewiseError(f"`{name}` does not go together with FSDP: thresholds are sharded")


class TrainedTwin:
    """The twin inside peft, DDP or FSDP, with its optimizer and the average of its weights."""

    def __init__(
        self,
        start: Start,
        recipe: Recipe,
        config: SparsifyConfig,
        accelerator: Accelerator,
        null_values: list[Tensor] | None,  # a layer: [kv_heads, d]
    ):
        """`null_values`: to replace those that the model starts with."""
        self.config, self.accelerator, self.gate, twin = config, accelerator, start.gate, start.model
        if null_values is not None:
            set_null_values(twin, null_values)
        self.unembedding: Any = twin.get_output_embeddings()
        self._dropout = [(module, module.p) for module in twin.modules() if isinstance(module, nn.Dropout)]
        for module, _ in self._dropout:
            module.p = 0.0  # the constraint compares with the dense model, which has no dropout either
        trained = as_trained(twin, config)
        if start.adapters is not None:
            start.adapters.load_into(trained)
        groups = [{"params": group} for group in parameter_groups(trained)]
        optimizer = torch.optim.AdamW(
            groups, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=can_fuse(accelerator)
        )
        self.model: nn.Module
        self.model, self.optimizer = accelerator.prepare(trained, optimizer)
        self.gates = gates_of(self.inner)
        self.average = self._make_average(recipe)

    def _make_average(self, recipe: Recipe) -> Average | None:
        """The average that will be saved."""
        if not recipe.optimizer.averaged_fraction:
            return None
        if self.accelerator.distributed_type == DistributedType.FSDP and not self.accelerator.is_fsdp2:
            raise EdgewiseError(
                f"the recipe {recipe.name} averages weights, which needs FSDP 2; start with --fsdp_version 2"
            )
        average = Average(p for p in self.model.parameters() if p.requires_grad)
        average.add_to_snapshots(self.accelerator)
        return average

    @property
    def inner(self) -> nn.Module:
        """The model inside DDP or FSDP, still inside peft."""
        return self.accelerator.unwrap_model(self.model)

    def autocast(self) -> Any:
        """Matrix products in bfloat16 inside a `with` block, if the config says so."""
        enabled = self.config.dtype == "bfloat16"
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=enabled)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The weights that would be saved, inside a `with` block."""
        if self.average is None:
            yield
            return
        self._reshard()
        with self.average.applied():
            try:
                yield
            finally:
                self._reshard()

    def _reshard(self) -> None:
        """Drop what FSDP has gathered for the last forward pass: it would outlive a change of the shards."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @torch.no_grad()
    def freeze_closed_heads(self) -> None:
        """Skip heads that are far from opening, in the weights and in their average, from now on.

        Without gradients an offset moves by Adam's momentum only, about 11 learning rates: a frozen head stays closed.
        """
        below = [edge_gate.b < FROZEN_BELOW for edge_gate in self.gates]
        with self.averaged():
            below = [
                old & (edge_gate.b < FROZEN_BELOW) for old, edge_gate in zip(below, self.gates, strict=True)
            ]
        self.set_frozen_heads([heads.tolist() for heads in below])

    @torch.no_grad()
    def close_heads(self, heads: Tensor) -> None:  # bool [layers, heads]
        """Close heads for good, in the weights and in their average."""
        for _ in range(2):  # swapped twice, they are as they were
            for edge_gate, closed in zip(self.gates, heads, strict=True):
                edge_gate.b.masked_fill_(closed.to(edge_gate.b.device) & (edge_gate.b > _CLOSED_B), _CLOSED_B)
            if self.average is not None:
                self.average.swap()
        self.set_frozen_heads(heads.tolist())

    def set_frozen_heads(self, frozen: list[list[bool]] | None) -> None:
        """Freeze heads beside those that are frozen already: [layers][heads]."""
        for edge_gate, heads in zip(self.gates, frozen or (), strict=bool(frozen)):
            added = torch.tensor(heads, device=edge_gate.b.device)
            before = edge_gate.frozen_heads
            frozen_heads = added if before is None else before | added
            edge_gate.frozen_heads = frozen_heads if frozen_heads.any() else None

    @property
    def frozen_heads(self) -> list[list[bool]] | None:
        """Heads that are frozen, [layers][heads]; None if there are none."""
        if all(edge_gate.frozen_heads is None for edge_gate in self.gates):
            return None
        none = [False] * self.gates[0].heads
        return [none if (heads := gate.frozen_heads) is None else heads.tolist() for gate in self.gates]

    @torch.no_grad()
    def bound_thresholds(self, maximum: float) -> None:
        """Clamp the gates' offsets: a falling bound closes attention that is spread over many keys."""
        for edge_gate in self.gates:
            edge_gate.b.clamp_(max=maximum)

    def finish(self) -> FinishedTwin:
        """The model to save: the average, adapters merged, dropout as it was. Nothing is trained after that."""
        if self.average is not None:
            self._reshard()
            self.average.swap()
            self.average = None
        inner: Any = self.inner.requires_grad_()
        for module, p in self._dropout:
            module.p = p
        for edge_gate in self.gates:
            edge_gate.frozen_heads = None  # their b says it
        if self.config.lora is not None:
            adapters = Adapters.of(inner)
            return FinishedTwin(inner.merge_and_unload().eval(), None, adapters)
        weights: Any = None
        if self.accelerator.distributed_type == DistributedType.FSDP:
            weights = self.accelerator.get_state_dict(self.model)
        return FinishedTwin(inner.eval(), weights, None)
