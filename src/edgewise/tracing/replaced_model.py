"""The replaced model: the model with every MLP replaced by its transcoder's features and a constant reconstruction error.

    output of MLP m = sum over l <= m of W_dec_{l->m} a_l + b_dec_m + error_m,       a_l = JumpReLU(features of layer l)

On the prompt itself it is the model, exactly. It differs from the linearised pass in that nothing is frozen: attention
patterns, norm denominators and which features are active all follow when something is taken out.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.gating.tap import tap
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_input, replace_output
from edgewise.models.linearised_pass import LinearisedNorm
from edgewise.tracing.ablations import Changes, ablating, last_logits
from edgewise.tracing.graph import Graph
from edgewise.training.transcoder.transcoder import JumpReLU


@dataclass
class NormState:
    """A norm in one pass: its output is `pushed * ratio + shift`."""

    pushed: Tensor
    """Its input through the linearised norm (denominator of the unablated pass), [n, T, D]."""
    ratio: Tensor
    """Denominator of the unablated pass over that of this one, [n, T]."""


@dataclass
class PassState:
    """What one pass of n sequences through the replaced model computes, a list entry for each layer."""

    norm_1: list[NormState] = field(default_factory=list)
    norm_2: list[NormState] = field(default_factory=list)
    post_attention: dict[int, NormState] = field(default_factory=dict)
    """By layer, in models that have such norms."""
    post_mlp: dict[int, NormState] = field(default_factory=dict)
    final_norm: list[NormState] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    """A = M * p, [n, heads, T, T]."""
    values: list[Tensor] = field(default_factory=list)
    """Less the null value, [n, heads, T, d]."""
    outputs: list[Tensor] = field(default_factory=list)
    """Of each head, [n, heads, T, d]."""
    preactivations: list[Tensor] = field(default_factory=list)
    """h, [n, T, F]."""
    activations: list[Tensor] = field(default_factory=list)
    """a, [n, T, F]."""
    errors: list[Tensor] = field(default_factory=list)
    """MLP outputs minus what the features write, [n, T, D]; the same in every pass of the replaced model."""
    logits: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Of the last position, [n, vocabulary]."""
    log_odds: Tensor = field(default_factory=lambda: torch.zeros(0))
    """[n]"""


def run_replaced(
    model: PreTrainedModel,
    graph: Graph,
    change: Changes,
    strength: Tensor | float = 1.0,
    own_mlps: bool = False,
) -> PassState:
    """Run the replaced model without the ablated components, sequence by sequence; or the model itself (`own_mlps`), whose
    MLPs are read as features and an error that follows."""
    state = PassState()
    n_layers = len(graph.linear.layers)
    with ExitStack() as stack:
        # the MLPs first: what an ablation subtracts from their outputs is subtracted from those of the features
        stack.enter_context(_mlps_as_features(model, graph, state, own_mlps))
        stack.enter_context(ablating(model, graph, change, strength))
        stack.enter_context(_recorded_norms(model, graph, state))
        # innermost, so that it reads what the ablation leaves
        taps = stack.enter_context(tap(model, read=["values", "weights", "outputs"]))
        state.logits = last_logits(model, graph, len(change.ablations))
    heads = graph.linear.n_heads
    for layer in range(n_layers):
        values = taps.last["values"][layer]
        state.values.append(values.repeat_interleave(heads // values.shape[1], 1))
        state.weights.append(taps.last["weights"][layer])
        state.outputs.append(taps.last["outputs"][layer])
    state.log_odds = graph.logits.log_odds(state.logits)
    return state


@contextmanager
def _mlps_as_features(
    model: PreTrainedModel, graph: Graph, state: PassState, own_mlps: bool
) -> Iterator[None]:
    transcoder, layers = graph.transcoder, architecture_of(model).layers

    def read(number: int, x: Tensor) -> None:
        encoders, encoder_bias = transcoder.reads(number)
        h = x.reshape(-1, graph.linear.length, graph.linear.width) @ encoders.T + encoder_bias
        activations: Tensor = JumpReLU.apply(h, transcoder.threshold[number, None])  # pyright: ignore
        state.preactivations.append(h)
        state.activations.append(activations)

    def write(number: int, own: Tensor) -> Tensor:
        y = sum(
            (
                a @ transcoder.writes(layer)[:, number - layer]
                for layer, a in enumerate(state.activations)
                if number in transcoder.outputs_of(layer)
            ),
            start=transcoder.output_bias[number].expand_as(graph.errors[number]),
        )
        error = own.reshape(y.shape) - y if own_mlps else graph.errors[number].expand_as(y)
        state.errors.append(error)
        return (y + error).reshape(own.shape)

    with ExitStack() as stack:
        for number, layer in enumerate(layers):
            stack.enter_context(replace_input(layer.mlp_in, partial(read, number)))
            stack.enter_context(replace_output(layer.mlp_out, partial(write, number)))
        yield


@contextmanager
def _recorded_norms(model: PreTrainedModel, graph: Graph, state: PassState) -> Iterator[None]:
    modules, linear = architecture_of(model), graph.linear
    with ExitStack() as stack:
        final = _recorded_norm(modules.final_norm, linear.final_norm, state.final_norm.append)
        stack.enter_context(final)
        for number, (layer, of_layer) in enumerate(zip(modules.layers, linear.layers, strict=True)):
            for module, norm, reader, into in (
                (layer.norm_1, of_layer.norm_1, layer.attention_reader, state.norm_1.append),
                (layer.norm_2, of_layer.norm_2, layer.mlp_reader, state.norm_2.append),
                (layer.post_attention, of_layer.post_attention, None, _at(state.post_attention, number)),
                (layer.post_mlp, of_layer.post_mlp, None, _at(state.post_mlp, number)),
            ):
                if isinstance(module, nn.Identity) and reader is not None:
                    stack.enter_context(replace_input(reader, partial(_keep_identity, into)))
                elif module is not None and norm is not None:
                    stack.enter_context(_recorded_norm(module, norm, into))
        yield


def _at(states: dict[int, NormState], number: int) -> Callable[[NormState], None]:
    return lambda state: states.__setitem__(number, state)


def _keep_identity(into: Callable[[NormState], None], x: Tensor) -> None:
    into(NormState(x, x.new_ones(x.shape[:-1])))


@contextmanager
def _recorded_norm(
    module: nn.Module, norm: LinearisedNorm, into: Callable[[NormState], None]
) -> Iterator[None]:
    inputs: list[Tensor] = []

    def record(y: Any) -> None:
        y, x = y if isinstance(y, Tensor) else y[0], inputs.pop()
        if x.ndim == 2:  # OPT flattens its batch
            x, y = (z.view(-1, len(norm.scale), z.shape[-1]) for z in (x, y))
        pushed = norm.push(x)
        ratio = ((y - norm.shift) * pushed).sum(-1) / (pushed * pushed).sum(-1).clamp_min(1e-30)
        into(NormState(pushed, ratio))

    def keep(x: Tensor) -> None:
        inputs.append(x)

    with replace_input(module, keep), replace_output(module, record):
        yield
