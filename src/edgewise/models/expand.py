"""A compacted twin with its removed heads there again: what analyses run on."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.gating.edge_gate import EdgeGate, HeadShape
from edgewise.models.architecture import Layer, architecture_of, qkv_columns
from edgewise.models.resize import new_gate, numbers_of, set_sizes, spread_features


def with_all_heads(model: PreTrainedModel) -> PreTrainedModel:
    """What analyses run on: the expanded copy of a compacted twin, any other model itself."""
    gates = [gate for gate in model.modules() if isinstance(gate, EdgeGate)]
    return expand(model) if any(gate.kept is not None for gate in gates) else model


@torch.no_grad()
def expand(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a compacted twin with its removed heads there again, closed and without weights; the same logits."""
    full = copy.deepcopy(model).eval()
    for layer in architecture_of(full).layers:
        small: EdgeGate = layer.attention.edge_gate  # pyright: ignore
        if small.kept is None:
            continue
        heads, n_heads = list(small.kept), small.all_heads
        per_group = n_heads // _all_kv_heads(full, n_heads)
        kv_heads = sorted({head // per_group for head in heads})
        _expand_layer(layer, heads, kv_heads, n_heads, n_heads // per_group)
        gate = new_gate(small, HeadShape(n_heads, n_heads // per_group, small.width))
        gate.b.fill_(-1.0)
        gate.b[heads] = small.b
        if gate.null_value is not None and small.null_value is not None:
            gate.null_value[kv_heads] = small.null_value
        layer.attention.edge_gate = gate
    return full


def _expand_layer(
    layer: Layer, heads: Sequence[int], kv_heads: Sequence[int], n_heads: int, n_kv_heads: int
) -> None:
    """The inverse of `compact.shrink` on a layer's projections; what was removed becomes 0."""
    d = layer.columns["q"][1].shape[1]
    full = _full_columns(layer, n_heads, n_kv_heads, d)
    for index, projection in enumerate(layer.projections):
        kinds = [kind for kind, (which, _) in layer.columns.items() if which == index]
        rows = torch.cat([full[kind][numbers_of(kind, heads, kv_heads)].flatten() for kind in kinds])
        spread_features(
            projection, rows.sort().values, sum(full[kind].numel() for kind in kinds), of_outputs=True
        )
    columns = (torch.tensor(heads)[:, None] * d + torch.arange(d)).flatten()
    spread_features(layer.out, columns, n_heads * d, of_outputs=False)
    set_sizes(layer.attention, n_heads, n_kv_heads, d)


def _full_columns(layer: Layer, n_heads: int, n_kv_heads: int, d: int) -> dict[str, Tensor]:
    """`Layer.columns` of the layer with all its heads."""
    return {kind: c for kind, (_, c) in qkv_columns(layer.attention, n_heads, n_kv_heads, d).items()}


def _all_kv_heads(model: PreTrainedModel, n_heads: int) -> int:
    return getattr(model.config.get_text_config(), "num_key_value_heads", None) or n_heads
