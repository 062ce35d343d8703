"""Validation by intervention: ablate features, heads and tokens one by one in the model itself, and compare the change of
the log odds with what a trace predicts.

Predictions, from the prompt's own pass:

    predicted   by the graph: what a source adds to the log odds directly and through every feature that it feeds
    gradient    gradient times activation in the replaced model, nothing frozen
    replaced    the ablation itself, done in the replaced model (its features instead of MLPs, errors constant)

Measurements, in the model:

    frozen      attention patterns, norm denominators and the probabilities of the other tokens among themselves are frozen,
                as in the graph. MLPs are the model's: the difference from `predicted` is the transcoder's error, and
                features that switch on or off
    actual      everything changes; split exactly into values, attention, norms and errors (`total_effects.py`)
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.gating.activations import Edit, Site
from edgewise.gating.tap import tap
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_forward
from edgewise.models.linearised_pass import LinearisedNorm
from edgewise.tracing.ablations import Ablation, Head, average_embedding, changes, run_ablated
from edgewise.tracing.graph import Graph
from edgewise.tracing.graph_predictions import predicted_effects
from edgewise.tracing.influence import PrunedGraph
from edgewise.tracing.schema import Intervention
from edgewise.tracing.total_effects import (
    STEPS,
    GradientEffects,
    Progress,
    TotalEffects,
    batch_size,
    gradient_effects,
    integrated_effects,
)

_MOVED = 5  # heads named whose patterns an ablation moves
PREDICTIONS = {"predicted": "", "gradient": "_gradient", "replaced": "_replaced"}
"""Each prediction, and how the name of its correlation with the measured effects ends."""
KINDS = ("feature", "head", "token")


def components(graph: Graph, pruned: PrunedGraph, heads: Sequence[Head], most: int) -> list[Ablation]:
    """One ablation for each of the kept features with most influence and of the given heads, at most `most` of either,
    and for each token."""
    length = graph.linear.length
    kept = pruned.targets[pruned.targets < len(graph.features)]
    features = kept[pruned.influence[kept + length].argsort(descending=True)][:most].tolist()
    return [
        *(Ablation(features=(feature,)) for feature in features),
        *(Ablation(heads=(head,)) for head in heads[:most]),
        *(Ablation(tokens=(position,)) for position in range(length)),
    ]


def validate(
    model: PreTrainedModel,
    graph: Graph,
    ablations: Sequence[Ablation],
    names: Sequence[str],
    progress: Progress = lambda n: None,
    steps: int = STEPS,
) -> list[Intervention]:
    """Ablate one component each, and compare with the predictions."""
    effects = integrated_effects(model, graph, ablations, steps, progress)
    frozen = frozen_changes(model, graph, ablations).tolist()
    gradient = gradient_effects(model, graph)
    by_feature, by_head = predicted_effects(graph)
    interventions = []
    for number, (ablation, name) in enumerate(zip(ablations, names, strict=True)):
        graph_says, first_order = _predictions(ablation, by_feature, by_head, gradient)
        interventions.append(
            Intervention(
                what=name,
                kind=_kind(ablation),
                predicted=graph_says,
                gradient=first_order,
                replaced=effects.replaced[number].item(),
                frozen=frozen[number],
                actual=effects.measured[number].item(),
                values=effects.values[number].item(),
                attention=effects.attention[number].sum().item(),
                norms=effects.norms[number].item(),
                errors=effects.errors[number].item(),
                moved=_moved_heads(effects, number),
            )
        )
    return interventions


def correlations(interventions: Sequence[Intervention]) -> dict[str, float | None]:
    """Of each prediction with the measured effects, for features, heads and tokens; of the graph also with the effects
    that are measured with attention and norms frozen."""
    result: dict[str, float | None] = {}
    for kind in KINDS:
        chosen = [intervention for intervention in interventions if intervention.kind == kind]
        actual = torch.tensor([intervention.actual for intervention in chosen])
        for prediction, ending in PREDICTIONS.items():
            values = torch.tensor([getattr(intervention, prediction) for intervention in chosen])
            result[f"{kind}_correlation{ending}"] = _correlation(values, actual)
        predicted = torch.tensor([intervention.predicted for intervention in chosen])
        frozen = torch.tensor([intervention.frozen for intervention in chosen])
        result[f"{kind}_correlation_frozen"] = _correlation(predicted, frozen)
    return result


def effect_closure(interventions: Sequence[Intervention]) -> float:
    """The largest difference between a measured effect and the sum of its parts, over the largest effect."""
    errors = [abs(i.values + i.attention + i.norms + i.errors - i.actual) for i in interventions]
    return max(errors, default=0.0) / max((abs(i.actual) for i in interventions), default=1.0)


def ablation_names(graph: Graph, ablations: Sequence[Ablation]) -> list[str]:
    """The id of the node that each ablation takes out, or L3H1 for a head."""
    features, ids = graph.features, graph.linear.ids
    names = []
    for ablation in ablations:
        if ablation.heads:
            names.append("L{}H{}".format(*ablation.heads[0]))
        elif ablation.tokens:
            names.append(f"E_{int(ids[ablation.tokens[0]])}_{ablation.tokens[0]}")
        else:
            of_feature = (features.layer, features.index, features.position)
            names.append("_".join(str(int(x[ablation.features[0]])) for x in of_feature))
    return names


def _kind(ablation: Ablation) -> str:
    return "feature" if ablation.features else "head" if ablation.heads else "token"


def _predictions(
    ablation: Ablation, by_feature: Tensor, by_head: Tensor, gradient: GradientEffects
) -> tuple[float, float]:
    """By the graph, and by gradient times activation."""
    if ablation.features:
        feature = ablation.features[0]
        return by_feature[feature].item(), gradient.features.total[feature].item()
    if ablation.heads:
        return by_head[ablation.heads[0]].item(), gradient.heads.total[ablation.heads[0]].item()
    position = ablation.tokens[0]
    return gradient.tokens.values[position].item(), gradient.tokens.total[position].item()


def _moved_heads(effects: TotalEffects, number: int) -> list[tuple[str, float]]:
    """The heads whose moving patterns do most."""
    by_head = effects.attention[number]
    order = by_head.abs().flatten().argsort(descending=True)[:_MOVED].tolist()
    heads = [divmod(i, by_head.shape[1]) for i in order]
    return [
        (f"L{layer}H{head}", by_head[layer, head].item()) for layer, head in heads if by_head[layer, head]
    ]


# ------------------------------------------------------------------------------------------------ frozen, in the model


@torch.no_grad()
def frozen_changes(model: PreTrainedModel, graph: Graph, ablations: Sequence[Ablation]) -> Tensor:  # -> [n]
    """Change of the log odds in the model; attention patterns, norm denominators, the others' probabilities are frozen."""
    mean, batch = average_embedding(model, graph), batch_size(graph)
    with frozen(model, graph):
        parts = [graph.linear.embedding.new_zeros(0)]
        for first in range(0, len(ablations), batch):
            change = changes(graph, ablations[first : first + batch], mean)
            parts.append(graph.logits.linear_part(run_ablated(model, graph, change)))
    return torch.cat(parts) - graph.logits.linear_part(graph.linear.logits)


@contextmanager
def frozen(model: PreTrainedModel, graph: Graph) -> Iterator[None]:
    """Keep the recorded attention patterns and norm denominators in every pass of a block."""

    def keep_pattern(layer: int, weights: Tensor) -> Tensor:
        return graph.linear.layers[layer].weights.expand_as(weights).clone()

    edits: dict[Site, Edit] = {"weights": keep_pattern}
    with _frozen_norms(model, graph), tap(model, edit=edits):
        yield


@contextmanager
def _frozen_norms(model: PreTrainedModel, graph: Graph) -> Iterator[None]:
    """Let all norms divide by their recorded denominators."""
    modules = architecture_of(model)
    norms = [(modules.final_norm, graph.linear.final_norm)]
    for layer, linear in zip(modules.layers, graph.linear.layers, strict=True):
        norms += [(layer.norm_1, linear.norm_1), (layer.norm_2, linear.norm_2)]
        norms += [(layer.post_attention, linear.post_attention), (layer.post_mlp, linear.post_mlp)]
    with ExitStack() as stack:
        for norm, linear in norms:
            if norm is None or linear is None:
                continue
            stack.enter_context(replace_forward(norm, partial(_frozen_norm, linear)))
        yield


def _frozen_norm(norm: LinearisedNorm, x: Tensor) -> Tensor:  # [n, T, D], or flattened as in OPT
    return (norm.push(x.reshape(-1, *norm.scale.shape)) + norm.shift).reshape(x.shape)


def _correlation(x: Tensor, y: Tensor) -> float | None:
    """Pearson's; None for fewer than three points or no spread."""
    if len(x) < 3 or not x.std() > 0 or not y.std() > 0:
        return None
    return torch.corrcoef(torch.stack([x, y]))[0, 1].item()
