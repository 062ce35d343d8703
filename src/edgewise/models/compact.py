"""Remove the heads of a sparse twin that can never attend, without changing its logits: `compact`.

A weight p never exceeds 1, so a relative gate, open where p > exp(-b), never opens if b <= 0. What such a head adds to the
residual stream is constant: its null value through W_O, or nothing. Its rows of W_Q and its columns of W_O are removed,
those of W_K and W_V once all query heads that read them are, and the constant goes into the bias of W_O. Query heads must
be shared equally among key/value heads, so with grouped queries some closed heads may stay; and each layer keeps one head.

A compacted twin has fewer parameters and a smaller key/value cache. Heads keep their numbers: `EdgeGate.kept` lists them,
and analyses run on the expanded model, in which the removed heads are there again and closed (`expand.py`).
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from edgewise.core.devices import without_tf32
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import EdgeGate, HeadShape, gate_config, gates_of
from edgewise.models.architecture import architecture_of, weight_and_bias
from edgewise.models.gate import gate
from edgewise.models.host import host_class
from edgewise.models.resize import bias_of, new_gate, numbers_of, select_inputs, select_outputs, set_sizes
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
                c[numbers_of(kind, heads, kv_heads)]
                for kind, (which, c) in layer.columns.items()
                if which == index
            ]
            select_outputs(projection, torch.cat([row.flatten() for row in rows]).sort().values)
        d = weight_and_bias(layer.out)[0].shape[1] // old.heads
        columns = torch.tensor(heads)[:, None] * d + torch.arange(d)
        select_inputs(layer.out, columns.flatten())
        set_sizes(layer.attention, len(heads), len(kv_heads), d)
        gate = new_gate(old, HeadShape(len(heads), len(kv_heads), old.width))
        gate.kept, gate.all_heads = tuple(heads), old.heads
        gate.b.copy_(old.b[heads])
        if gate.null_value is not None and old.null_value is not None:
            gate.null_value.copy_(old.null_value[kv_heads])
        layer.attention.edge_gate = gate


def prepare_biases(model: PreTrainedModel) -> None:
    """Give each W_O a bias, where the constants of removed heads are, if the twin has null values."""
    config = gate_config(model)
    if config is not None and config.null_value:
        for layer in architecture_of(model).layers:
            bias_of(layer.out)


def _fold_null_values(model: PreTrainedModel, kept: KeptHeads) -> None:
    """Add to the bias of W_O what removed heads write: their null values."""
    prepare_biases(model)
    for layer, heads in zip(architecture_of(model).layers, kept, strict=True):
        gate: EdgeGate = layer.attention.edge_gate  # pyright: ignore
        if gate.null_value is None:
            continue
        removed = [head for head in range(gate.heads) if head not in heads]
        values = gate.null_value.repeat_interleave(gate.heads // gate.kv_heads, 0)[removed]  # [removed, d]
        # in double precision on the CPU: some devices have none
        doubles = (x.cpu().double() for x in (values, layer.out_weights[removed]))
        writes = torch.einsum("hd,hdm->m", *doubles)
        with torch.no_grad():
            bias_of(layer.out).add_(writes.to(layer.out_weights))


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
