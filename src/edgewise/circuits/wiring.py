"""Edges between components: which components write to the residual stream, and which read it.

    sources   the token embedding, every head, every MLP
    targets   every head's query, key and value input, every MLP, the logits

The input of a target is a sum over sources, and an edge (u, v) is the term of source u in the input of target v. Keys and
values that several query heads share (grouped-query attention) are one target. GPT-2 small has 32,491 edges.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.models.architecture import Architecture

INPUTS = ("q", "k", "v")


class LayerWiring(NamedTuple):
    """Numbers of one layer's components among all sources and targets."""

    source: int
    """The first head among the sources, which is the number of sources before the layer; the MLP follows the heads."""
    heads: int
    target: int
    """The first query among the targets; keys, values and the MLP follow."""
    inputs: int
    """Queries, keys and values."""

    @property
    def head_sources(self) -> slice:
        return slice(self.source, self.mlp_source)

    @property
    def mlp_source(self) -> int:
        return self.source + self.heads

    @property
    def input_targets(self) -> slice:
        return slice(self.target, self.mlp_target)

    @property
    def mlp_target(self) -> int:
        return self.target + self.inputs


@dataclass(frozen=True)
class Wiring:
    """All edges of a model. Sources and targets are numbered in the order in which they are computed."""

    parts: Architecture
    parallel: bool
    """Whether an MLP reads the same residual stream as the attention beside it."""

    @cached_property
    def sources(self) -> list[str]:
        """Names."""
        names = ["embedding"]
        for number, layer in enumerate(self.parts.layers):
            names += [f"L{number}H{head}" for head in range(layer.heads)] + [f"MLP {number}"]
        return names

    @cached_property
    def targets(self) -> list[str]:
        """Names; `G` instead of `H` is a group of heads that share a key and a value."""
        names = []
        for number, layer in enumerate(self.parts.layers):
            for kind in INPUTS:
                count = layer.heads if kind == "q" else layer.kv_heads
                letter = "H" if count == layer.heads else "G"
                names += [f"L{number}{letter}{head}.{kind}" for head in range(count)]
            names.append(f"MLP {number}")
        return [*names, "logits"]

    @cached_property
    def layers(self) -> list[LayerWiring]:
        layers, source, target = [], 1, 0
        for layer in self.parts.layers:
            inputs = layer.heads + 2 * layer.kv_heads
            layers.append(LayerWiring(source, layer.heads, target, inputs))
            source, target = source + layer.heads + 1, target + inputs + 1
        return layers

    @cached_property
    def exists(self) -> Tensor:
        """Bool [sources, targets]: whether the target is computed after the source."""
        mask = torch.zeros(len(self.sources), len(self.targets), dtype=torch.bool)
        for layer in self.layers:
            mask[: layer.source, layer.target : layer.mlp_target + 1] = True
            if not self.parallel:
                mask[layer.head_sources, layer.mlp_target] = True
        mask[:, -1] = True
        return mask

    @property
    def count(self) -> int:
        """Number of edges."""
        return int(self.exists.sum())

    def edge_names(self, edges: list[int]) -> list[str]:
        """Names of edges, given by their numbers among those that exist."""
        pairs = self.exists.nonzero()[edges].tolist()
        return [f"{self.sources[source]} -> {self.targets[target]}" for source, target in pairs]

    def within(self, heads: Collection[str]) -> Tensor:  # -> bool [edges]
        """Edges that a circuit of heads, given by their names (`L0H3`), consists of: all but those of other heads."""
        writes, reads = [True], []
        for number, layer in enumerate(self.parts.layers):
            kept = [f"L{number}H{head}" in heads for head in range(layer.heads)]
            group = layer.heads // layer.kv_heads
            groups = [any(kept[first : first + group]) for first in range(0, layer.heads, group)]
            writes += [*kept, True]
            reads += [*kept, *groups, *groups, True]
        return (torch.tensor(writes)[:, None] & torch.tensor([*reads, True]))[self.exists]

    @cached_property
    def head_pairs(self) -> tuple[Tensor, int]:
        """The pair of heads that each edge between heads joins (-1 for other edges), int64 [sources, targets, heads that
        share a key]; and how many pairs there are. A shared key or value joins a head to all heads that read it."""
        heads = [layer.heads for layer in self.parts.layers]
        total = sum(heads)
        shared = max(layer.heads // layer.kv_heads for layer in self.parts.layers)
        pairs = torch.full((*self.exists.shape, shared), -1)
        head_of_source = {
            layer.source + head: sum(heads[:number]) + head
            for number, layer in enumerate(self.layers)
            for head in range(layer.heads)
        }
        for number, (layer, module) in enumerate(zip(self.layers, self.parts.layers, strict=True)):
            group = module.heads // module.kv_heads
            readers = [[head] for head in range(module.heads)]
            readers += 2 * [[g * group + i for i in range(group)] for g in range(module.kv_heads)]
            for target, heads_reading in enumerate(readers, layer.target):
                for source, head in head_of_source.items():
                    if source < layer.source:
                        for i, reader in enumerate(heads_reading):
                            pairs[source, target, i] = head * total + sum(heads[:number]) + reader
        return pairs, len(pairs[pairs >= 0].unique())
