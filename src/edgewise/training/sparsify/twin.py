"""The twin in training: the gated copy of the dense model, prepared for one device or many, and what becomes of it."""

import copy
import logging
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import gates_of
from edgewise.models.checkpoint import gate
from edgewise.models.lora import Adapters
from edgewise.training.sparsify.config import SparsifyConfig
from edgewise.training.sparsify.null_value import set_null_values
from edgewise.training.sparsify.parameters import as_trained, can_fuse, parameter_groups

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


class TrainedTwin:
    """The twin inside peft, DDP or FSDP, with its optimizer."""

    def __init__(
        self,
        dense: PreTrainedModel,
        gate_config: GateConfig,
        null_values: list[Tensor] | None,  # a layer: [kv_heads, d]
        config: SparsifyConfig,
        accelerator: Accelerator,
    ):
        self.accelerator, self._config = accelerator, config
        # weights are kept in single precision: the steps of training would be lost in bfloat16
        twin = gate(copy.deepcopy(dense).float(), gate_config)  # pyright: ignore
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

    @property
    def inner(self) -> nn.Module:
        """The model inside DDP or FSDP, still inside peft."""
        return self.accelerator.unwrap_model(self.model)

    def finish(self) -> FinishedTwin:
        """The model to save: adapters merged, dropout as it was."""
        inner: Any = self.inner.requires_grad_()
        for module, p in self._dropout:
            module.p = p
        if self._config.lora is not None:
            adapters = Adapters.of(inner)
            return FinishedTwin(inner.merge_and_unload().eval(), None, adapters)
        weights: Any = None
        if self.accelerator.distributed_type == DistributedType.FSDP:
            weights = self.accelerator.get_state_dict(self.model)
        return FinishedTwin(inner.eval(), weights, None)
