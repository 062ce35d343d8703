"""Total effects: what ablating a feature, head or token does with nothing frozen, and which way it does it.

The effect of an ablation is split by the last thing on its way that is no fixed linear map:

    values      along the residual stream, values and features: what the attribution graph contains
    attention   by moving attention: sum over attention edges of (gradient at the edge's weight) * (change of the weight)
    norms       by changing norm denominators, which take back part of what changes the length of the residual stream
    errors      by changing what the MLPs do beyond their features: what the transcoder misses

*Integrated* along the removal, the parts add up to the measured effect exactly, gates and features that switch included.
Between two strengths of the ablation every product in the pass changes by the product rule in means,

    (A v)' - A v = mean(A) (v' - v) + (A' - A) mean(v),       a' - a = slope (h' - h),  slope = (a' - a) / (h' - h),

so the change of the log odds is an exactly linear function of what the ablation changes, of A' - A, and of the changes of
denominators and errors, whose coefficients one backward pass through means and slopes (`secant.py`) gives. Steps along the
removal are summed. *Gradient times activation* is the limit of a small step in the replaced model, where errors are
constant, for all components at once; the gates' M are constant there.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.gating.edge_gate import mode
from edgewise.gating.tap import tap
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_input
from edgewise.tracing.ablations import Ablation, Changes, average_embedding, changes
from edgewise.tracing.graph import Graph
from edgewise.tracing.replaced_model import PassState, run_replaced
from edgewise.tracing.secant import Secant

STEPS = 2
"""Along the removal: the sum is exact with any number, the parts hardly change with more."""
_BATCH_BYTES = 256 << 20

Progress = Callable[[float], object]
"""Called with the number of ablations finished."""


@dataclass(frozen=True)
class TotalEffects:
    """Change of the log odds by each of n ablations, and its parts."""

    values: Tensor
    """[n]"""
    attention: Tensor
    """By each head's moving pattern, [n, L, heads]."""
    norms: Tensor
    """[n]"""
    errors: Tensor
    """[n]"""
    measured: Tensor
    """In the model itself, [n]: the sum of the parts."""
    replaced: Tensor
    """In the replaced model, whose errors are constant, [n]."""

    @property
    def total(self) -> Tensor:  # [n]
        return self.values + self.attention.sum((1, 2)) + self.norms + self.errors


@torch.no_grad()
def integrated_effects(
    model: PreTrainedModel,
    graph: Graph,
    ablations: Sequence[Ablation],
    steps: int = STEPS,
    progress: Progress = lambda n: None,
) -> TotalEffects:
    """Effects of ablations of one component each, integrated along the removal."""
    mean, batch = average_embedding(model, graph), batch_size(graph)
    shape = (0, len(graph.linear.layers), graph.linear.n_heads)
    none = graph.linear.embedding.new_zeros(0)
    parts: list[tuple[Tensor, ...]] = [(none, none.view(shape), none, none, none, none)]
    for first in range(0, len(ablations), batch):
        change = changes(graph, ablations[first : first + batch], mean)
        parts.append(_integrate(model, graph, change, steps))
        progress(len(change.ablations))
    return TotalEffects(*(torch.cat(of_parts).cpu() for of_parts in zip(*parts, strict=True)))


def _integrate(model: PreTrainedModel, graph: Graph, change: Changes, steps: int) -> tuple[Tensor, ...]:
    first = before = run_replaced(model, graph, change, 0.0, own_mlps=True)
    sums: list[Tensor] = []
    for step in range(1, steps + 1):
        after = run_replaced(model, graph, change, step / steps, own_mlps=True)
        secant = Secant(graph, change, before, after, 1 / steps)
        parts = (secant.values, secant.attention, secant.norms, secant.errors)
        sums = [a + b for a, b in zip(sums, parts, strict=True)] if sums else [*parts]
        before = after
    replaced = run_replaced(model, graph, change, 1.0)
    return (*sums, before.log_odds - first.log_odds, replaced.log_odds - first.log_odds)


def batch_size(graph: Graph) -> int:
    """Ablations at once: two passes' states take `_BATCH_BYTES`."""
    linear = graph.linear
    per_layer = 12 * linear.width + 2 * graph.transcoder.features + 2 * linear.n_heads * linear.length
    numbers = linear.length * per_layer * len(linear.layers) + 4 * len(linear.logits)
    return max(1, _BATCH_BYTES // (4 * 2 * numbers))


# --------------------------------------------------------------------------------------------- gradient times activation


class Parts(NamedTuple):
    """Gradient times activation of one kind of component: [features], [L, heads] or [T] each."""

    values: Tensor
    attention: Tensor
    norms: Tensor

    @property
    def total(self) -> Tensor:
        return self.values + self.attention + self.norms


@dataclass(frozen=True)
class GradientEffects:
    """First-order effects of ablating every feature, head and token in the replaced model."""

    features: Parts
    heads: Parts
    tokens: Parts


@torch.enable_grad()
def gradient_effects(model: PreTrainedModel, graph: Graph) -> GradientEffects:
    """Gradient times activation of everything, with nothing frozen: one pass forward, three backward."""
    state, embedding = _differentiable_pass(model, graph)
    with torch.no_grad():
        mean = average_embedding(model, graph)
        none = changes(graph, [Ablation()], mean)
        fixed = Secant(graph, none, state, state, 1.0)  # coefficients of a small step
    by_attention = sum((c * A).sum() for c, A in zip(fixed.weight_gradients, state.weights, strict=True))
    posts = (states[i] for states in (state.post_attention, state.post_mlp) for i in sorted(states))
    norms = [*state.norm_1, *state.norm_2, *state.final_norm, *posts]
    by_norms = sum((c * norm.ratio).sum() for c, norm in zip(fixed.norm_gradients, norms, strict=True))
    inputs = [embedding, *state.activations, *state.outputs]
    n_layers = len(state.activations)

    def effects(measure: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradients = torch.autograd.grad(measure, inputs, retain_graph=True, allow_unused=True)
        filled = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True)]
        at_embedding, at_features, at_heads = filled[0], filled[1 : 1 + n_layers], filled[1 + n_layers :]
        return _times_removal(graph, mean, at_embedding[0], at_features, at_heads)

    whole, moved, scaled = effects(state.log_odds.sum()), effects(by_attention), effects(by_norms)  # pyright: ignore
    return GradientEffects(*(Parts(t - a - n, a, n) for t, a, n in zip(whole, moved, scaled, strict=True)))


def _differentiable_pass(model: PreTrainedModel, graph: Graph) -> tuple[PassState, Tensor]:
    """A pass through the replaced model with its autograd graph, and the zeros added to the embedding, [1, T, D]."""
    embedding = torch.zeros_like(graph.linear.embedding)[None].requires_grad_()
    change = Changes([Ablation()], torch.zeros_like(embedding), [None] * len(graph.linear.layers))
    scores: dict[int, Tensor] = {}
    visible = _visible_keys(model, graph)

    def hard_weights(layer: int, weights: Tensor) -> Tensor:
        """M * p with M constant: the gates' straight-through slope is for training."""
        p = scores[layer].masked_fill(~visible[layer], -torch.inf).softmax(-1)
        return p * (weights != 0)

    first = architecture_of(model).layers[0].module
    edits = {"scores": lambda layer, s: scores.setdefault(layer, s), "weights": hard_weights}
    with ExitStack() as stack:
        stack.enter_context(replace_input(first, lambda x: x + embedding))
        stack.enter_context(tap(model, edit=edits))  # pyright: ignore
        state = run_replaced(model, graph, change)
    return state, embedding


@torch.no_grad()
def _visible_keys(model: PreTrainedModel, graph: Graph) -> dict[int, Tensor]:  # bool [1, heads, T, T]
    """What the causal mask, and a sliding window if there is one, leaves of each layer: the gates of the dense mode."""
    with mode(model, "dense"), tap(model, read=["gates"]) as taps:
        model(input_ids=graph.linear.ids[None], use_cache=False)
    return {layer: gates > 0 for layer, gates in taps.last["gates"].items()}


def _times_removal(
    graph: Graph, mean: Tensor, at_embedding: Tensor, at_features: list[Tensor], at_heads: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:  # -> [n], [L, heads], [T]
    """Gradients times what ablating each feature, head and token changes."""
    linear, features = graph.linear, graph.features
    gradient = torch.stack(at_features)[features.layer, 0, features.position, features.index]
    by_head = [
        -(g[0] * (linear.head_outputs[number] - linear.layers[number].null_value[:, None])).sum((-2, -1))
        for number, g in enumerate(at_heads)
    ]
    by_token = (at_embedding * (mean - linear.embedding)).sum(-1)
    return -gradient * features.activation, torch.stack(by_head), by_token
