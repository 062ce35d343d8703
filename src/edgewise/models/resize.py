"""Change the number of heads of an attention layer, in place: features of its linear maps, its gate, its sizes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from edgewise.gating.edge_gate import EdgeGate, HeadShape
from edgewise.models.architecture import weight_and_bias


def new_gate(old: EdgeGate, shape: HeadShape) -> EdgeGate:
    """A gate of another shape in the state of an old one; its parameters are to be filled in."""
    gate = EdgeGate(old.layer, shape, old.config, old.b.device).to(old.b.dtype).train(old.training)
    gate.mode = old.mode
    return gate


def numbers_of(kind: str, heads: Sequence[int], kv_heads: Sequence[int]) -> Tensor:
    """Heads of queries, or those of keys and values."""
    return torch.tensor(heads if kind == "q" else kv_heads)


def bias_of(linear: Any) -> nn.Parameter:
    """The bias of a linear map, which gets one of zeros if it has none."""
    if linear.bias is None:
        matrix, _ = weight_and_bias(linear)
        linear.bias = nn.Parameter(torch.zeros(matrix.shape[0], dtype=matrix.dtype, device=matrix.device))
    return linear.bias


def select_outputs(linear: Any, rows: Tensor) -> None:
    """Keep some output features of a linear map, in place."""
    rows = rows.to(linear.weight.device)
    is_conv = isinstance(linear, Conv1D)
    linear.weight = _parameter(linear.weight, linear.weight[:, rows] if is_conv else linear.weight[rows])
    if linear.bias is not None:
        linear.bias = _parameter(linear.bias, linear.bias[rows])
    setattr(linear, "nf" if is_conv else "out_features", len(rows))


def select_inputs(linear: Any, columns: Tensor) -> None:
    """Keep some input features of a linear map, in place."""
    columns = columns.to(linear.weight.device)
    is_conv = isinstance(linear, Conv1D)
    linear.weight = _parameter(
        linear.weight, linear.weight[columns] if is_conv else linear.weight[:, columns]
    )
    setattr(linear, "nx" if is_conv else "in_features", len(columns))


def spread_features(linear: Any, indices: Tensor, size: int, of_outputs: bool) -> None:
    """Put a linear map's output or input features to the given indices among `size`, zeros elsewhere."""
    is_conv, indices = isinstance(linear, Conv1D), indices.to(linear.weight.device)
    dim = 1 if of_outputs == is_conv else 0
    shape = list(linear.weight.shape)
    shape[dim] = size
    linear.weight = _parameter(
        linear.weight, linear.weight.new_zeros(shape).index_copy(dim, indices, linear.weight.detach())
    )
    if of_outputs and linear.bias is not None:
        bias = linear.bias.new_zeros(size).index_copy(0, indices, linear.bias.detach())
        linear.bias = _parameter(linear.bias, bias)
    names = ("nf", "out_features") if of_outputs else ("nx", "in_features")
    setattr(linear, names[0] if is_conv else names[1], size)


def set_sizes(attention: Any, heads: int, kv_heads: int, d: int) -> None:
    """What attention modules of transformers call their sizes."""
    sizes = {
        "split_size": heads * d,  # GPT-2
        "num_heads": heads,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_key_value_groups": heads // kv_heads,
    }
    for name, size in sizes.items():
        if hasattr(attention, name):
            setattr(attention, name, size)


def _parameter(old: nn.Parameter, values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach().clone(), old.requires_grad)
