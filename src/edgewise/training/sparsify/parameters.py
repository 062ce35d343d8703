"""What of a twin is trained: all weights or LoRA adapters, and thresholds at a rate of their own."""

import warnings

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import EdgeGate, attention_modules, gates_of
from edgewise.training.sparsify.config import SparsifyConfig


def as_trained(model: PreTrainedModel, settings: SparsifyConfig) -> nn.Module:
    """The model with gradients for what the settings train, inside peft if that is adapters."""
    if settings.attention_only:
        train_attention_only(model)
    if settings.lora is None:
        return model
    return with_lora(model, settings.lora, settings.seed, settings.attention_only)


def train_attention_only(model: nn.Module) -> None:
    """Leave all weights as they are but those of attention, and its gates' thresholds."""
    model.requires_grad_(False)
    for part in attention_modules(model):
        part.requires_grad_()


def parameter_groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """Weights (null values among them), and thresholds if the gate learns them."""
    thresholds = {id(part.b) for part in model.modules() if isinstance(part, EdgeGate)}
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        [p for p in trained if id(p) not in thresholds],
        [p for p in trained if id(p) in thresholds],
    ]
    return [group for group in groups if group]


def can_fuse(accelerator: Accelerator) -> bool:
    return accelerator.device.type in ("cpu", "cuda") and accelerator.distributed_type != DistributedType.FSDP


def with_lora(twin: PreTrainedModel, rank: int, seed: int, attention_only: bool = False) -> nn.Module:
    """Adapters on every linear layer, or on attention's; gates stay trainable."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise EdgewiseError("`lora` needs peft: pip install 'edgewise[lora]'") from error
    where = _linear_maps(twin, attention_only)
    devices = [twin.device] if twin.device.type == "cuda" else []
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        torch.manual_seed(seed)  # adapters start at random
        warnings.filterwarnings("ignore", "fan_in_fan_out")  # which peft sets right by itself
        trained = get_peft_model(twin, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=where))
    for gate in gates_of(trained):
        for parameter in gate.parameters():
            parameter.requires_grad_()
    return trained


def _linear_maps(model: PreTrainedModel, attention_only: bool) -> list[str]:
    """Names of the linear layers but for the unembedding. A linear layer with a forward of its own, such as Llama 4's
    router, may return more than a tensor, and stays as it is."""
    within = {part for module in attention_modules(model) for part in module.modules()}
    return [
        name
        for name, part in model.named_modules()
        if type(part).forward in (nn.Linear.forward, Conv1D.forward)
        and part is not model.get_output_embeddings()
        and (part in within or not attention_only)
    ]
