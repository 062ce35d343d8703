"""Record one forward pass and linearise it; models whose pass is not the linear function of `linearised.py` are refused."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.models.architecture import Layer, architecture_of
from edgewise.models.hooks import replace_input, replace_output
from edgewise.tracing.linearised import LinearisedLayer, LinearisedNorm, LinearisedPass

_TOLERANCE = 1e-3  # relative; what an architecture does differently shows up as far more

Recorded = dict[tuple[str, int], tuple[Tensor, Tensor]]
"""Input and output, [T, D], of each recorded module: norm_1, norm_2 and mlp of each layer, and ("final_norm", 0)."""


@torch.no_grad()
def linearise(model: PreTrainedModel, ids: Tensor) -> LinearisedPass:  # [T]
    """Run a prompt and freeze its attention patterns and norm denominators."""
    modules, name = architecture_of(model), type(model).__name__
    model.eval()
    recorded: Recorded = {}
    residuals: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for number, layer in enumerate(modules.layers):
            stack.enter_context(replace_input(layer.module, lambda x, i=number: residuals.setdefault(i, x)))
            for kind in ("norm_1", "norm_2", "mlp"):
                stack.enter_context(_recording(getattr(layer, kind), (kind, number), recorded))
        stack.enter_context(_recording(modules.final_norm, ("final_norm", 0), recorded))
        taps = stack.enter_context(tap(model, read=["queries", "keys", "outputs", "scores", "weights"]))
        logits = model(input_ids=ids[None], use_cache=False).logits[0, -1]
    n_layers = len(modules.layers)
    if len(recorded) != 3 * n_layers + 1 or len(residuals) != n_layers:
        raise EdgewiseError(f"{name}: a layer's norm, attention or MLP was not called; it cannot be traced")
    of_layers = {
        what: [taps.last[what][i][0] for i in range(n_layers)]
        for what in ("queries", "keys", "outputs", "scores", "weights")
    }
    final_norm = _linearise_norm(modules.final_norm, *recorded["final_norm", 0], name)
    linear = LinearisedPass(
        ids=ids,
        layers=_linearise_layers(model, recorded, of_layers["weights"]),
        final_norm=final_norm,
        parallel=all(
            torch.equal(recorded["norm_1", i][0], recorded["norm_2", i][0]) for i in range(n_layers)
        ),
        embedding=residuals[0][0],
        residuals=[residuals[i][0] for i in range(n_layers)],
        mlp_inputs=torch.stack([recorded["mlp", i][0] for i in range(n_layers)]),
        mlp_outputs=torch.stack([recorded["mlp", i][1] for i in range(n_layers)]),
        queries=of_layers["queries"],
        keys=of_layers["keys"],
        head_outputs=of_layers["outputs"],
        scores=of_layers["scores"],
        logits=logits,
    )
    _check_reconstruction(linear, recorded["final_norm", 0][0], name)
    return linear


@contextmanager
def _recording(module: nn.Module, key: tuple[str, int], recorded: Recorded) -> Iterator[None]:
    """Record a module's input and output."""
    inputs: list[Tensor] = []

    def record_input(x: Tensor) -> Tensor:
        inputs.append(x)
        return x

    def record_output(y: Any) -> None:
        first = y if isinstance(y, Tensor) else y[0]
        recorded[key] = inputs[-1][0], first[0]

    with replace_input(module, record_input), replace_output(module, record_output):
        yield


def _linearise_layers(
    model: PreTrainedModel, recorded: Recorded, weights: list[Tensor]
) -> list[LinearisedLayer]:
    name, gates = type(model).__name__, gates_of(model)
    layers = []
    for number, layer in enumerate(architecture_of(model).layers):
        norm_1 = _linearise_norm(layer.norm_1, *recorded["norm_1", number], name)
        norm_2 = _linearise_norm(layer.norm_2, *recorded["norm_2", number], name)
        layers.append(_linearise_layer(layer, norm_1, norm_2, weights[number], gates[number].null_value))
    return layers


def _linearise_layer(
    layer: Layer,
    norm_1: LinearisedNorm,
    norm_2: LinearisedNorm,
    weights: Tensor,  # [heads, T, T]
    null_value: Tensor | None,  # [kv_heads, d]
) -> LinearisedLayer:
    values, bias = layer.weights("v")
    group = layer.heads // layer.kv_heads  # heads that share their values
    values = values.repeat_interleave(group, 0)
    outputs = layer.out_weights
    value_bias = norm_1.shift @ values  # [heads, d]
    if bias is not None:
        value_bias = value_bias + bias[:, 0].repeat_interleave(group, 0)
    constant = torch.einsum("hqk,hd,hde->qe", weights, value_bias, outputs)
    null_values = (
        torch.zeros_like(value_bias) if null_value is None else null_value.repeat_interleave(group, 0)
    )
    constant = constant + torch.einsum("hq,hd,hde->qe", 1 - weights.sum(-1), null_values, outputs)
    out_bias = getattr(layer.out, "bias", None)
    if out_bias is not None:
        constant = constant + out_bias
    return LinearisedLayer(norm_1, norm_2, weights, values, outputs, constant, null_values)


def _linearise_norm(norm: nn.Module, x: Tensor, y: Tensor, model: str) -> LinearisedNorm:  # [T, D] each
    """Tell a layer norm from an RMS norm, and its gain and shift, by its response to two probes; the denominators from its
    recorded input x and output y."""
    probe = torch.ones_like(x[:1]) * 1e3
    probe[:, 1::2] *= -1
    plus, minus = norm(probe)[0], norm(-probe)[0]
    shift, gain = (plus + minus) / 2, (plus - minus) / 2 * probe[0].sign()
    # a layer norm ignores a constant (an odd width has a mean of its own: far less)
    moved = norm(probe + 1e3)[0] - plus
    centred = bool(moved.abs().max() < 0.1 * gain.abs().max())
    unscaled = gain * (x - x.mean(-1, keepdim=True) if centred else x)
    inverse = ((y - shift) * unscaled).sum(-1) / (unscaled * unscaled).sum(-1).clamp_min(1e-30)  # 1 / sigma
    linear = LinearisedNorm(gain * inverse[:, None], centred, shift)
    error = (linear.push(x) + shift - y).abs().max() / y.abs().max().clamp_min(1e-30)
    if not error < _TOLERANCE:
        raise EdgewiseError(
            f"{model}: {type(norm).__name__} is neither a layer norm nor an RMS norm; it cannot be traced"
        )
    return linear


def _check_reconstruction(linear: LinearisedPass, final: Tensor, model: str) -> None:  # [T, D]
    """Refuse a model whose final residual stream is not what the linear function gives for its sources and constants."""

    def mlp_write(number: int) -> Tensor:
        return linear.mlp_outputs[number][None] + linear.layers[number].constant[None]

    reconstructed = linear.push(linear.embedding[None], mlp_write, lambda *_: None)[0]
    error = (reconstructed - final).abs().max() / final.abs().max()
    if not error < _TOLERANCE:
        raise EdgewiseError(
            f"{model} does more to its residual stream than add what heads and MLPs write ({error:.1%} is missing); it "
            "cannot be traced"
        )
