"""The twin in training: the gated copy of the dense model, prepared for one device or many, with optimizer and average."""

import contextlib
import copy
import logging
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gates_of
from edgewise.models.gate import gate
from edgewise.models.lora import Adapters
from edgewise.training.averaging import Average
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.null_value import set_null_values
from edgewise.training.sparsify.parameters import as_trained, can_fuse, parameter_groups
from edgewise.training.sparsify.recipe import Recipe

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


class TrainedTwin:
    """The twin inside peft, DDP or FSDP, with its optimizer and the average of its weights."""

    def __init__(
        self,
        dense: PreTrainedModel,
        recipe: Recipe,
        config: SparsifyConfig,
        accelerator: Accelerator,
        null_values: list[Tensor] | None,  # a layer: [kv_heads, d]
    ):
        self.config, self.accelerator = config, accelerator
        self.gate = recipe.gate_config(config.gate, config.b, config.sinks)
        # float32 weights: updates would be lost in the rounding of bfloat16
        twin = gate(copy.deepcopy(dense).float(), self.gate)  # pyright: ignore
        if null_values is not None:
            set_null_values(twin, null_values)
        self.unembedding: Any = twin.get_output_embeddings()
        self._dropout = [(module, module.p) for module in twin.modules() if isinstance(module, nn.Dropout)]
        for module, _ in self._dropout:
            module.p = 0.0  # the constraint compares with the dense model, which has no dropout either
        trained = as_trained(twin, config)
        groups = [{"params": group} for group in parameter_groups(trained)]
        optimizer = torch.optim.AdamW(
            groups, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=can_fuse(accelerator)
        )
        self.model: nn.Module
        self.model, self.optimizer = accelerator.prepare(trained, optimizer)
        self.gates = gates_of(self.inner)
        self.average = self._make_average(recipe)

    def _make_average(self, recipe: Recipe) -> Average | None:
        """The average that will be saved. With FSDP, snapshots would hold one process's shards of it."""
        if (
            not recipe.optimizer.averaged_fraction
            or self.accelerator.distributed_type == DistributedType.FSDP
        ):
            return None
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

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """The weights that would be saved, inside a `with` block."""
        return contextlib.nullcontext() if self.average is None else self.average.applied()

    @torch.no_grad()
    def bound_thresholds(self, maximum: float) -> None:
        """Clamp the gates' offsets: a falling bound closes attention that is spread over many keys."""
        for edge_gate in self.gates:
            edge_gate.b.clamp_(max=maximum)

    def finish(self) -> FinishedTwin:
        """The model to save: the average, adapters merged, dropout as it was. Nothing is trained after that."""
        if self.average is not None:
            self.average.swap()
            self.average = None
        inner: Any = self.inner.requires_grad_()
        for module, p in self._dropout:
            module.p = p
        if self.config.lora is not None:
            adapters = Adapters.of(inner)
            return FinishedTwin(inner.merge_and_unload().eval(), None, adapters)
        weights: Any = None
        if self.accelerator.distributed_type == DistributedType.FSDP:
            weights = self.accelerator.get_state_dict(self.model)
        return FinishedTwin(inner.eval(), weights, None)
