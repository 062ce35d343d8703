"""Ablations: what is taken out of a forward pass, one set for each sequence of a batch.

A feature is ablated by subtracting what it writes from the outputs of its own and all later MLPs; a head by replacing its
output with its null value (zero without one), as if it attended to nothing; a token by replacing its embedding with the
mean over the vocabulary, position embeddings kept. `strength` goes from 0 (nothing is taken out) to 1; what comes after is
computed anew, by the model or by the replaced model. Nothing before an ablated component depends on it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.gating.activations import Edit, Site
from edgewise.gating.tap import tap
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_input, replace_output
from edgewise.tracing.graph import Graph

Head = tuple[int, int]
"""Layer, head."""


@dataclass(frozen=True)
class Ablation:
    """What is taken out of one sequence."""

    features: tuple[int, ...] = ()
    """Numbered as in the graph."""
    heads: tuple[Head, ...] = ()
    tokens: tuple[int, ...] = ()
    """Positions."""


@dataclass(frozen=True)
class Changes:
    """What n ablations change, all constant while `strength` grows."""

    ablations: Sequence[Ablation]
    embedding: Tensor
    """Added to the input of the first layer, [n, T, D]."""
    writes: Sequence[Tensor | None]
    """Of each layer: added to the output of its MLP, [n, T, D]; None where nothing is."""

    def of_heads(self, layer: int) -> Iterator[tuple[int, int]]:
        """Sequence and head, for each head of a layer that is ablated."""
        for row, ablation in enumerate(self.ablations):
            for of_layer, head in ablation.heads:
                if of_layer == layer:
                    yield row, head


def changes(graph: Graph, ablations: Sequence[Ablation], mean_embedding: Tensor) -> Changes:  # [T, D]
    """What each ablation changes; `mean_embedding` as from `average_embedding`."""
    linear, length = graph.linear, graph.linear.length
    embedding = linear.embedding.new_zeros(len(ablations), length, linear.width)
    for row, ablation in enumerate(ablations):
        for position in ablation.tokens:
            embedding[row, position] = mean_embedding[position] - linear.embedding[position]
    rows = [row for row, ablation in enumerate(ablations) for _ in ablation.features]
    features = torch.tensor([f for ablation in ablations for f in ablation.features], dtype=torch.long)
    writes: list[Tensor | None] = []
    for layer in range(len(linear.layers)):
        write = graph.source_write(features + length, layer) if len(features) else None
        if write is not None:
            write = torch.zeros_like(embedding).index_add_(0, torch.tensor(rows), -write)
        writes.append(write)
    return Changes(ablations, embedding, writes)


@torch.no_grad()
def average_embedding(model: PreTrainedModel, graph: Graph) -> Tensor:  # -> [T, D]
    """Input of the first layer if every token were the average one of the vocabulary; positions are kept."""
    tokens = model.get_input_embeddings()
    mean = tokens.weight.mean(0)  # pyright: ignore
    recorded: list[Tensor] = []
    first = architecture_of(model).layers[0].module
    with replace_output(tokens, lambda y: mean.expand_as(y)), replace_input(first, recorded.append):
        model(input_ids=graph.linear.ids[None], use_cache=False)
    return recorded[0][0]


@contextmanager
def ablating(
    model: PreTrainedModel, graph: Graph, change: Changes, strength: Tensor | float = 1.0
) -> Iterator[None]:
    """Take the ablations out of every forward pass of a block: sequence i of the batch lacks ablation i. `strength`: of
    each sequence, [n], or of all."""
    strengths = torch.as_tensor(strength).to(change.embedding).expand(len(change.ablations))

    def without_heads(layer: int, y: Tensor) -> Tensor | None:  # [n, heads, T, d]
        ablated = list(change.of_heads(layer))
        if not ablated:
            return None
        y = y.clone()
        for row, head in ablated:
            y[row, head] = y[row, head].lerp(
                graph.linear.layers[layer].null_value[head].to(y), strengths[row].to(y)
            )
        return y

    def adding(delta: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: x + (strengths[:, None, None] * delta).to(x).reshape(x.shape)

    layers = architecture_of(model).layers
    edits: dict[Site, Edit] = {"outputs": without_heads}
    with ExitStack() as stack:
        if change.embedding.any():
            stack.enter_context(replace_input(layers[0].module, adding(change.embedding)))
        for layer, write in zip(layers, change.writes, strict=True):
            if write is not None:
                stack.enter_context(replace_output(layer.mlp_out, adding(write)))
        stack.enter_context(tap(model, edit=edits))
        yield


def run_ablated(
    model: PreTrainedModel, graph: Graph, change: Changes, strength: Tensor | float = 1.0
) -> Tensor:  # -> [n, vocabulary]
    """Logits of the last position in the model itself, for each ablation."""
    with ablating(model, graph, change, strength):
        return last_logits(model, graph, len(change.ablations))


def last_logits(model: PreTrainedModel, graph: Graph, n: int) -> Tensor:  # -> [n, vocabulary]
    return model(input_ids=graph.linear.ids[None].expand(n, -1), use_cache=False).logits[:, -1]
