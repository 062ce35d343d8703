"""Activations and edge counts that a tap records while a model runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from edgewise.core.errors import EdgewiseError

Site = Literal["queries", "keys", "values", "scores", "gates", "weights", "outputs"]
"""Where attention can be tapped, in the order of computation: queries [batch, heads, queries, d]; keys and values [batch,
kv_heads, keys, d], values less the null value if the gate has one; scores s before masking, gates M and weights M * p, each
[batch, heads, queries, keys]; outputs y of each head [batch, heads, queries, d]."""
MATRICES = frozenset({"scores", "gates", "weights"})
"""Sites of size queries x keys, which only the reference implementation materialises."""
Edit = Callable[[int, Tensor], Tensor | None]
"""(layer, tensor) -> its replacement, or None to keep it."""


@dataclass(frozen=True)
class EdgeCounts:
    """Edges of one layer in one forward pass."""

    layer: int
    expected: Tensor  # [batch, heads]: sum of sigmoid(z), differentiable
    opened: Tensor  # [batch, heads]
    pairs: Tensor  # [batch, 1 or heads]: visible (query, key) pairs
    queries: Tensor  # [batch, 1 or heads]: queries with at least one visible key


@dataclass(eq=False)
class Activations:
    """What a tap records. Counts accumulate over forward passes; `last` holds the tensors of the latest pass."""

    read: frozenset[Site] = frozenset()
    edit: Mapping[Site, Edit] = field(default_factory=dict)
    counts: list[EdgeCounts] = field(default_factory=list)
    last: dict[Site, dict[int, Tensor]] = field(default_factory=dict)
    """Tensors by site and layer."""

    @property
    def needs_matrices(self) -> bool:
        """Whether a queries x keys matrix is read or edited."""
        return bool((self.read | self.edit.keys()) & MATRICES)

    def observe(self, site: Site, layer: int, x: Tensor) -> Tensor:
        """Apply the site's edit, then record the result if the site is read; returns the tensor to go on with."""
        if site in self.edit:
            edited = self.edit[site](layer, x)
            if edited is not None:
                if edited.shape != x.shape:
                    raise EdgewiseError(
                        f"the edit of {site} in layer {layer} changed its shape from {list(x.shape)} to {list(edited.shape)}"
                    )
                x = edited
        if site in self.read:
            self.last.setdefault(site, {})[layer] = x
        return x

    @property
    def expected_density(self) -> Tensor:
        """[layers, heads]: expected fraction of visible edges that are open, differentiable: the sparsity penalty."""
        return self._per_head(lambda c: c.expected, lambda c: c.pairs)

    @property
    def density_per_head(self) -> Tensor:
        """[layers, heads]: fraction of visible edges that were open."""
        return self._per_head(lambda c: c.opened, lambda c: c.pairs)

    @property
    def edges_per_query_per_head(self) -> Tensor:
        """[layers, heads]: mean number of open edges per query; unlike density, comparable across context lengths."""
        return self._per_head(lambda c: c.opened, lambda c: c.queries)

    @property
    def density(self) -> float:
        """Fraction of visible edges that were open, mean over heads."""
        return self.density_per_head.mean().item()

    @property
    def edges_per_query(self) -> float:
        """Open edges per query, mean over heads."""
        return self.edges_per_query_per_head.mean().item()

    def _per_head(
        self, numerator: Callable[[EdgeCounts], Tensor], denominator: Callable[[EdgeCounts], Tensor]
    ) -> Tensor:
        """[layers, heads]: ratio of two counts, each summed over batch and forward passes."""
        if not self.counts:
            raise EdgewiseError(
                "no forward pass was recorded: run the model inside the `with edgewise.tap(model)` block"
            )
        above: dict[int, Tensor] = {}
        below: dict[int, Tensor] = {}
        for count in self.counts:
            above[count.layer] = above.get(count.layer, 0) + numerator(count).sum(0)
            below[count.layer] = below.get(count.layer, 0) + denominator(count).expand_as(count.opened).sum(0)
        return torch.stack([above[layer] / below[layer] for layer in sorted(above)])
