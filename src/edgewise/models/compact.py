"""Remove the heads of a sparse twin that can never attend, without changing its logits: `compact`, and back: `expand`.

A weight p never exceeds 1, so a relative gate, open where p > exp(-b), never opens if b <= 0. What such a head adds to the
residual stream is constant: its null value through W_O, or nothing. Its rows of W_Q and its columns of W_O are removed,
those of W_K and W_V once all query heads that read them are, and the constant goes into the bias of W_O. Query heads must
be shared equally among key/value heads, so with grouped queries some closed heads may stay; and each layer keeps one head.

A compacted twin has fewer parameters and a smaller key/value cache. Heads keep their numbers: `EdgeGate.kept` lists them,
and analyses run on the expanded model, in which the removed heads are there again and closed.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from edgewise.core.devices import without_tf32
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import EdgeGate, HeadShape, gate_config, gates_of
from edgewise.models.architecture import Layer, architecture_of, qkv_columns, weight_and_bias
from edgewise.models.gate import gate
from edgewise.models.host import host_class
from edgewise.models.twin_format import KeptHeads
from edgewise.models.weights import check_finite

TOLERANCE = 1e-5
"""Largest difference of logits, relative to the largest logit, in single precision."""


def closed_heads(model: PreTrainedModel) -> list[list[int]]:
    """The heads of each layer whose gate can never open."""
    config = gate_config(model)
    if config is None:
        raise EdgewiseError("this model is dense: only a sparse twin has closed heads")
    if config.kappa != 1:
        raise EdgewiseError(
            f"a {config.kind} gate may open at any b, so no head can be proven closed; a relative gate's can"
        )
    return [[head for head, b in enumerate(gate.b.tolist()) if b <= 0] for gate in gates_of(model)]


def compact(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a sparse twin without its closed heads: the same logits, fewer parameters, a smaller key/value cache.

    >>> small = edgewise.compact(edgewise.load("pocket-sparse"))
    >>> edgewise.save(small, "runs/pocket-compact")
    """
    if any(gate.kept is not None for gate in gates_of(model)):
        raise EdgewiseError("this twin is compacted already")
    closed = closed_heads(model)
    shapes = [gate.shape for gate in gates_of(model)]
    kept = [heads_to_keep(shape, heads) for shape, heads in zip(shapes, closed, strict=True)]
    if all(len(heads) == shape.heads for heads, shape in zip(kept, shapes, strict=True)):
        raise EdgewiseError("no head of this twin is closed for good: there is nothing to remove")
    small = copy.deepcopy(model).eval()
    _fold_null_values(small, kept)
    shrink(small, kept)
    _check_same(model, small)
    return small


def heads_to_keep(shape: HeadShape, closed: Sequence[int]) -> list[int]:
    """The heads that stay: open ones, and as many closed ones as make the groups of key/value heads equal; at least one."""
    per_group = shape.heads // shape.kv_heads
    groups = [range(k * per_group, (k + 1) * per_group) for k in range(shape.kv_heads)]
    n_open = [sum(head not in closed for head in group) for group in groups]
    size = max(1, *n_open) if n_open else 1
    kept_groups = [group for group, n in zip(groups, n_open, strict=True) if n] or groups[:1]
    return sorted(
        head
        for group in kept_groups
        for head in sorted(group, key=lambda head: (head in closed, head))[:size]
    )


@torch.no_grad()
def shrink(model: PreTrainedModel, kept: KeptHeads) -> None:
    """Remove all heads but those, in place; constants that they add must be in the biases already."""
    for layer, heads in zip(architecture_of(model).layers, kept, strict=True):
        old: EdgeGate = layer.attention.edge_gate  # pyright: ignore
        if len(heads) == old.heads:
            continue
        per_group = old.heads // old.kv_heads
        kv_heads = sorted({head // per_group for head in heads})
        for index, projection in enumerate(layer.projections):
            rows = [
                c[_of(kind, heads, kv_heads)] for kind, (which, c) in layer.columns.items() if which == index
            ]
            _select_outputs(projection, torch.cat([row.flatten() for row in rows]).sort().values)
        d = weight_and_bias(layer.out)[0].shape[1] // old.heads
        columns = torch.tensor(heads)[:, None] * d + torch.arange(d)
        _select_inputs(layer.out, columns.flatten())
        _set_sizes(layer.attention, len(heads), len(kv_heads), d)
        gate = _new_gate(old, HeadShape(len(heads), len(kv_heads), old.width))
        gate.kept, gate.all_heads = tuple(heads), old.heads
        gate.b.copy_(old.b[heads])
        if gate.null_value is not None and old.null_value is not None:
            gate.null_value.copy_(old.null_value[kv_heads])
        layer.attention.edge_gate = gate


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
        gate = _new_gate(small, HeadShape(n_heads, n_heads // per_group, small.width))
        gate.b.fill_(-1.0)
        gate.b[heads] = small.b
        if gate.null_value is not None and small.null_value is not None:
            gate.null_value[kv_heads] = small.null_value
        layer.attention.edge_gate = gate
    return full


def with_all_heads(model: PreTrainedModel) -> PreTrainedModel:
    """What analyses run on: the expanded copy of a compacted twin, any other model itself."""
    gates = [gate for gate in model.modules() if isinstance(gate, EdgeGate)]
    return expand(model) if any(gate.kept is not None for gate in gates) else model


def prepare_biases(model: PreTrainedModel) -> None:
    """Give each W_O a bias, where the constants of removed heads are, if the twin has null values."""
    config = gate_config(model)
    if config is not None and config.null_value:
        for layer in architecture_of(model).layers:
            _bias_of(layer.out)


# ----------------------------------------------------------------------------------------------------------------- modules


def _new_gate(old: EdgeGate, shape: HeadShape) -> EdgeGate:
    gate = EdgeGate(old.layer, shape, old.config, old.b.device).to(old.b.dtype).train(old.training)
    gate.mode = old.mode
    return gate


def _of(kind: str, heads: Sequence[int], kv_heads: Sequence[int]) -> Tensor:
    return torch.tensor(heads if kind == "q" else kv_heads)


def _fold_null_values(model: PreTrainedModel, kept: KeptHeads) -> None:
    """Add to the bias of W_O what removed heads write: their null values."""
    prepare_biases(model)
    for layer, heads in zip(architecture_of(model).layers, kept, strict=True):
        gate: EdgeGate = layer.attention.edge_gate  # pyright: ignore
        if gate.null_value is None:
            continue
        removed = [head for head in range(gate.heads) if head not in heads]
        values = gate.null_value.repeat_interleave(gate.heads // gate.kv_heads, 0)[removed]  # [removed, d]
        writes = torch.einsum("hd,hdm->m", values.double(), layer.out_weights[removed].double())
        with torch.no_grad():
            _bias_of(layer.out).add_(writes.to(layer.out_weights))


def _bias_of(linear: Any) -> nn.Parameter:
    if linear.bias is None:
        matrix, _ = weight_and_bias(linear)
        linear.bias = nn.Parameter(torch.zeros(matrix.shape[0], dtype=matrix.dtype, device=matrix.device))
    return linear.bias


def _select_outputs(linear: Any, rows: Tensor) -> None:
    """Keep some output features of a linear map, in place."""
    rows = rows.to(linear.weight.device)
    is_conv = isinstance(linear, Conv1D)
    linear.weight = _parameter(linear.weight, linear.weight[:, rows] if is_conv else linear.weight[rows])
    if linear.bias is not None:
        linear.bias = _parameter(linear.bias, linear.bias[rows])
    setattr(linear, "nf" if is_conv else "out_features", len(rows))


def _select_inputs(linear: Any, columns: Tensor) -> None:
    """Keep some input features of a linear map, in place."""
    columns = columns.to(linear.weight.device)
    is_conv = isinstance(linear, Conv1D)
    linear.weight = _parameter(
        linear.weight, linear.weight[columns] if is_conv else linear.weight[:, columns]
    )
    setattr(linear, "nx" if is_conv else "in_features", len(columns))


def _parameter(old: nn.Parameter, values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach().clone(), old.requires_grad)


def _expand_layer(
    layer: Layer, heads: Sequence[int], kv_heads: Sequence[int], n_heads: int, n_kv_heads: int
) -> None:
    """The inverse of `shrink` on a layer's projections; what was removed becomes 0."""
    d = layer.columns["q"][1].shape[1]
    full = _full_columns(layer, n_heads, n_kv_heads, d)
    for index, projection in enumerate(layer.projections):
        kinds = [kind for kind, (which, _) in layer.columns.items() if which == index]
        rows = torch.cat([full[kind][_of(kind, heads, kv_heads)].flatten() for kind in kinds])
        _spread(projection, rows.sort().values, sum(full[kind].numel() for kind in kinds), of_outputs=True)
    columns = (torch.tensor(heads)[:, None] * d + torch.arange(d)).flatten()
    _spread(layer.out, columns, n_heads * d, of_outputs=False)
    _set_sizes(layer.attention, n_heads, n_kv_heads, d)


def _full_columns(layer: Layer, n_heads: int, n_kv_heads: int, d: int) -> dict[str, Tensor]:
    """`Layer.columns` of the layer with all its heads."""
    return {kind: c for kind, (_, c) in qkv_columns(layer.attention, n_heads, n_kv_heads, d).items()}


def _spread(linear: Any, indices: Tensor, size: int, of_outputs: bool) -> None:
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


def _set_sizes(attention: Any, heads: int, kv_heads: int, d: int) -> None:
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


def _all_kv_heads(model: PreTrainedModel, n_heads: int) -> int:
    return getattr(model.config.get_text_config(), "num_key_value_heads", None) or n_heads


# ------------------------------------------------------------------------------------------------------------------- proof


@torch.no_grad()
@without_tf32()
def _check_same(model: PreTrainedModel, small: PreTrainedModel) -> None:
    """Refuse a host whose code needs all its heads, or whose logits have changed."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(0, vocabulary, (2, 16), generator=torch.Generator().manual_seed(0)).to(model.device)
    was_training = model.training
    model.eval()
    try:
        before = model(input_ids=ids, use_cache=False).logits.float()
        after = small(input_ids=ids, use_cache=False).logits.float()
    except (RuntimeError, ValueError, TypeError) as error:
        raise EdgewiseError(
            f"{type(model).__name__} cannot run with fewer heads in a layer: {first_line(error)}"
        ) from error
    finally:
        model.train(was_training)
    tolerance = TOLERANCE if model.dtype in (torch.float32, torch.float64) else 2e-2
    difference = ((after - before).abs().max() / before.abs().max().clamp_min(1.0)).item()
    if not difference <= tolerance:
        raise EdgewiseError(
            f"{type(model).__name__} computes something else with fewer heads in a layer (logits differ by "
            f"{difference:.2g}): it cannot be compacted"
        )


def load_compact(
    name: str, host: PretrainedConfig, config: GateConfig, kept: KeptHeads, state: dict[str, Tensor]
) -> PreTrainedModel:
    """A compacted twin from its weights: the whole host is built, shrunk, and filled."""
    model = gate(host_class(host)(host), config)
    try:
        prepare_biases(model)
        shrink(model, kept)
        report = model.load_state_dict(state, strict=False)
    except (RuntimeError, ValueError, IndexError) as error:
        raise EdgewiseError(
            f"{name}: the weights are not those of the heads that config.json lists; the folder is damaged"
        ) from error
    tied = set(model.all_tied_weights_keys or ())
    missing = sorted(set(report.missing_keys) - tied)
    if missing or report.unexpected_keys:
        key = [*missing, *report.unexpected_keys][0]
        raise EdgewiseError(
            f"{name}: the checkpoint does not fit its config, {key} for one; is a file missing?"
        )
    model.tie_weights()
    check_finite(name, state)
    return model
