"""Record one forward pass and linearise it: a `LinearisedPass`. Models whose pass is another function are refused."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.core.errors import UnsupportedArchitecture
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.models.architecture import Layer, architecture_of, vocabulary_size, weight_and_bias
from edgewise.models.hooks import record_input, replace_input, replace_output
from edgewise.models.linearised_pass import LinearisedLayer, LinearisedNorm, LinearisedPass
from edgewise.models.norms import check_norm, norm_parameters

_TOLERANCE = 1e-3  # relative, in single precision; what an architecture does differently shows up as far more
_HALF_TOLERANCE = 0.1
_CHECK_TOKENS = 8

Recorded = dict[tuple[str, int], tuple[Tensor, Tensor]]
"""Input and output, [T, D], of each recorded module: norms and MLP of each layer, final norm and unembedding."""
_NORMS = ("norm_1", "norm_2", "post_attention", "post_mlp")


def check_traceable(model: PreTrainedModel) -> None:
    """Refuse a model that cannot be linearised, by a few random tokens: a transcoder of it could not be used for a trace."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary_size(model), (_CHECK_TOKENS,), generator=generator)
    linearise(model, ids.to(model.device))


@torch.no_grad()
def linearise(model: PreTrainedModel, ids: Tensor) -> LinearisedPass:  # [T]
    """Run a prompt and freeze its attention patterns and norm denominators."""
    modules, name = architecture_of(model), type(model).__name__
    model.eval()
    recorded: Recorded = {}
    residuals: dict[int, Tensor] = {}
    unembedding: Any = model.get_output_embeddings()
    with ExitStack() as stack:
        for number, layer in enumerate(modules.layers):
            stack.enter_context(replace_input(layer.module, lambda x, i=number: residuals.setdefault(i, x)))
            stack.enter_context(_recording_layer(layer, number, recorded))
        stack.enter_context(_recording(modules.final_norm, ("final_norm", 0), recorded))
        stack.enter_context(_recording(unembedding, ("unembedding", 0), recorded))
        taps = stack.enter_context(tap(model, read=["queries", "keys", "outputs", "scores", "weights"]))
        logits = model(input_ids=ids[None], use_cache=False).logits[0, -1]
    n_layers = len(modules.layers)
    if sum(kind == "mlp" for kind, _ in recorded) != n_layers or len(residuals) != n_layers:
        raise UnsupportedArchitecture(
            f"{name}: a layer's norm, attention or MLP was not called; it cannot be traced"
        )
    of_layers = {
        what: [taps.last[what][i][0] for i in range(n_layers)]
        for what in ("queries", "keys", "outputs", "scores", "weights")
    }
    final_norm = _linearise_norm(modules.final_norm, *recorded["final_norm", 0])
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
        logit_scale=_logit_scale(recorded, logits, name),
    )
    _check_reconstruction(linear, recorded["final_norm", 0][0], name)
    return linear


@contextmanager
def _recording_layer(layer: Layer, number: int, recorded: Recorded) -> Iterator[None]:
    """Record the layer's norms and its MLP. An identity is recorded as its reader's input, twice."""
    with ExitStack() as stack:
        for kind in _NORMS:
            norm = getattr(layer, kind)
            if isinstance(norm, nn.Identity):
                reader = layer.attention_reader if kind == "norm_1" else layer.mlp_reader
                keep = partial(_keep_both, recorded, (kind, number))
                stack.enter_context(replace_input(reader, keep))
            elif norm is not None:
                stack.enter_context(_recording(norm, (kind, number), recorded))
        stack.enter_context(_recording(layer.mlp_in, ("mlp", number), recorded, layer.mlp_out))
        yield


def _keep_both(recorded: Recorded, key: tuple[str, int], x: Tensor) -> None:
    recorded[key] = _of_one_sequence(x), _of_one_sequence(x)


def _of_one_sequence(x: Tensor) -> Tensor:  # [1, T, D], or flattened [T, D] -> [T, D]
    return x[0] if x.ndim == 3 else x


@contextmanager
def _recording(
    module: nn.Module, key: tuple[str, int], recorded: Recorded, last: nn.Module | None = None
) -> Iterator[None]:
    """Record a module's input, and its output or that of `last`."""
    inputs: list[Tensor] = []

    def record_output(y: Any) -> None:
        first = y if isinstance(y, Tensor) else y[0]
        recorded[key] = _of_one_sequence(inputs[-1]), _of_one_sequence(first)

    with record_input(module, inputs), replace_output(last or module, record_output):
        yield


def _logit_scale(recorded: Recorded, logits: Tensor, model: str) -> float:  # [vocabulary]
    """The factor between the unembedding's output and the logits; refuses more than a factor, such as a soft cap, and
    whatever stands between the final norm and the unembedding."""
    (read, unembedded), (_, normed) = recorded["unembedding", 0], recorded["final_norm", 0]
    if not torch.equal(read[-1], normed[-1]):
        raise UnsupportedArchitecture(
            f"{model} has more than its final norm before the unembedding; it cannot be traced"
        )
    unembedded = unembedded[-1]
    scale = ((logits * unembedded).sum() / (unembedded * unembedded).sum().clamp_min(1e-30)).item()
    if not (logits - scale * unembedded).abs().max() < _tolerance(logits) * logits.abs().max():
        raise UnsupportedArchitecture(
            f"{model} caps its logits or changes them otherwise after the unembedding; it cannot be traced"
        )
    return scale


def _linearise_layers(
    model: PreTrainedModel, recorded: Recorded, weights: list[Tensor]
) -> list[LinearisedLayer]:
    gates = gates_of(model)
    layers = []
    for number, layer in enumerate(architecture_of(model).layers):
        norms = {
            kind: _linearise_norm(norm, *recorded[kind, number])
            for kind in _NORMS
            if (norm := getattr(layer, kind)) is not None
        }
        layers.append(_linearise_layer(layer, norms, weights[number], gates[number].null_value))
    return layers


def _linearise_layer(
    layer: Layer,
    norms: dict[str, LinearisedNorm],
    weights: Tensor,  # [heads, T, T]
    null_value: Tensor | None,  # [kv_heads, d]
) -> LinearisedLayer:
    values, bias = layer.weights("v")
    norm_1, post_attention, post_mlp = (norms.get(kind) for kind in ("norm_1", "post_attention", "post_mlp"))
    assert norm_1 is not None
    group = layer.heads // layer.kv_heads  # heads that share their values
    values = values.repeat_interleave(group, 0)
    outputs = layer.multiplier * layer.out_weights
    value_bias = norm_1.shift @ values  # [heads, d]
    if bias is not None:
        value_bias = value_bias + bias[:, 0].repeat_interleave(group, 0)
    constant = torch.einsum("hqk,hd,hde->qe", weights, value_bias, outputs)
    null_values = (
        torch.zeros_like(value_bias) if null_value is None else null_value.repeat_interleave(group, 0)
    )
    constant = constant + torch.einsum("hq,hd,hde->qe", 1 - weights.sum(-1), null_values, outputs)
    _, out_bias = weight_and_bias(layer.out)
    if out_bias is not None:
        constant = constant + layer.multiplier * out_bias
    if post_attention is not None:
        constant = post_attention.push(constant) + layer.multiplier * post_attention.shift
    if post_mlp is not None and post_mlp.shift.any():
        raise UnsupportedArchitecture(
            f"{type(layer.module).__name__} has a norm with a bias after its MLP; it cannot be traced"
        )
    return LinearisedLayer(
        norm_1,
        norms["norm_2"],
        weights,
        values,
        outputs,
        constant,
        null_values,
        post_attention,
        post_mlp,
        layer.multiplier,
    )


def _linearise_norm(norm: nn.Module, x: Tensor, y: Tensor) -> LinearisedNorm:  # [T, D] each
    """A norm's parameters, and its denominators from a recorded input x and output y."""
    parameters = norm_parameters(norm, x)
    check_norm(norm, parameters, x, y, _tolerance(x))
    return LinearisedNorm(parameters.scale(x, y), parameters.centred, parameters.shift)


def _tolerance(x: Tensor) -> float:
    return _TOLERANCE if x.dtype in (torch.float32, torch.float64) else _HALF_TOLERANCE


def _check_reconstruction(linear: LinearisedPass, final: Tensor, model: str) -> None:  # [T, D]
    """Refuse a model whose final residual stream is not what the linear function gives for its sources and constants."""
    error = (linear.reconstruct() - final).abs().max() / final.abs().max()
    if not error < _tolerance(final):
        raise UnsupportedArchitecture(
            f"{model} does more to its residual stream than add what heads and MLPs write ({error:.1%} is missing); it "
            "cannot be traced"
        )
