"""The tap: read, count and replace what passes through the attention function, in every layer of every architecture.

with edgewise.tap(model) as seen:                      # counts only; nothing of size T x T is kept
    model(ids)
print(seen.density, seen.edges_per_query)

with edgewise.tap(model, read=["weights"]) as seen:    # the attention maps
    model(ids)
seen.last["weights"][3]                                # layer 3: [batch, heads, queries, keys]

def without_head_5(layer, y):                          # y: [batch, heads, queries, d]
    return y.index_fill(1, torch.tensor([5]), 0.0) if layer == 3 else y

with edgewise.tap(model, edit={"outputs": without_head_5}):
    model(ids)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gates_of
from edgewise.kernels.equations import Gated

Passing = Literal["queries", "keys", "values", "scores", "gates", "weights", "outputs"]
"""What can be tapped, in the order in which it passes: queries ([batch, heads, queries, d]), keys and values ([batch,
kv_heads, keys, d]) as they arrive (values less that of attending to nothing, if the gate has one), s before masking, M and
M * p (each [batch, heads, queries, keys]), and each head's y ([batch, heads, queries, d])."""
_MATRICES = frozenset({"scores", "gates", "weights"})
Edit = Callable[[int, Tensor], Tensor | None]
"""Called with the layer's number and the tensor; gives its replacement, or None to leave it."""


@dataclass(frozen=True)
class Count:
    """Edges of one layer in one forward pass."""

    layer: int
    expected: Tensor  # [batch, heads]: sum of sigmoid(z), differentiable
    opened: Tensor  # [batch, heads]
    pairs: Tensor  # [batch, 1 or heads]: (query, key) pairs in sight
    queries: Tensor  # [batch, 1 or heads]: queries that see anything


@dataclass(eq=False)
class Tap:
    """What was seen. Counts add up over forward passes; `last` holds the tensors of the latest pass."""

    read: frozenset[Passing]
    edit: Mapping[Passing, Edit]
    counts: list[Count] = field(default_factory=list)
    last: dict[Passing, dict[int, Tensor]] = field(default_factory=dict)

    @property
    def needs_matrices(self) -> bool:
        return bool((self.read | self.edit.keys()) & _MATRICES)

    def passes(self, what: Passing, layer: int, x: Tensor) -> Tensor:
        """Called by the attention function: edit first, then keep what is really used."""
        if what in self.edit:
            edited = self.edit[what](layer, x)
            if edited is not None:
                if edited.shape != x.shape:
                    raise EdgewiseError(
                        f"the edit of {what} in layer {layer} changed its shape from {list(x.shape)} to {list(edited.shape)}"
                    )
                x = edited
        if what in self.read:
            self.last.setdefault(what, {})[layer] = x
        return x

    def count(self, layer: int, gated: Gated, pairs: Tensor, queries: Tensor) -> None:
        self.counts.append(Count(layer, gated.edges, gated.opened, pairs, queries))

    def _per_head(self, what: Callable[[Count], Tensor], per: Callable[[Count], Tensor]) -> Tensor:
        """[layers, heads]: one count over another, each summed over batch and passes."""
        if not self.counts:
            raise EdgewiseError("nothing was seen: run the model inside the `with edgewise.tap(model)` block")
        above: dict[int, Tensor] = {}
        below: dict[int, Tensor] = {}
        for count in self.counts:
            above[count.layer] = above.get(count.layer, 0) + what(count).sum(0)
            below[count.layer] = below.get(count.layer, 0) + per(count).expand_as(count.opened).sum(0)
        return torch.stack([above[layer] / below[layer] for layer in sorted(above)])

    @property
    def expected_density(self) -> Tensor:
        """[layers, heads]: expected share of edges that are open, differentiable: what post-training pushes down."""
        return self._per_head(lambda c: c.expected, lambda c: c.pairs)

    @property
    def density_per_head(self) -> Tensor:
        """[layers, heads]: share of edges that were open."""
        return self._per_head(lambda c: c.opened, lambda c: c.pairs)

    @property
    def edges_per_query_per_head(self) -> Tensor:
        """[layers, heads]: open edges of a query, which unlike the density does not depend on the context length."""
        return self._per_head(lambda c: c.opened, lambda c: c.queries)

    @property
    def density(self) -> float:
        """Share of all edges that were open."""
        return self.density_per_head.mean().item()

    @property
    def edges_per_query(self) -> float:
        """Open edges of a query, on average over heads."""
        return self.edges_per_query_per_head.mean().item()


@contextmanager
def tap(
    model: nn.Module, read: Iterable[Passing] = (), edit: Mapping[Passing, Edit] | None = None
) -> Iterator[Tap]:
    """Open a tap on a model for the length of a `with` block. Taps nest: the innermost edits last."""
    read, edit = frozenset(read), edit or {}
    unknown = (read | edit.keys()) - {*get_args(Passing)}
    if unknown:
        raise EdgewiseError(
            f"cannot tap {', '.join(sorted(unknown))}; what passes is: {', '.join(get_args(Passing))}"
        )
    gates = gates_of(model)
    if model.training and any(_recomputes_without_graph(module) for module in model.modules()):
        raise EdgewiseError(
            "reentrant gradient checkpointing cuts the density out of the graph; enable it with use_reentrant=False"
        )
    opened = Tap(read, edit)
    for gate in gates:
        gate.taps.append(opened)
    try:
        yield opened
    finally:
        for gate in gates:
            gate.taps.remove(opened)


def _recomputes_without_graph(module: nn.Module) -> bool:
    how = getattr(module, "_gradient_checkpointing_func", None)
    return bool(
        getattr(module, "gradient_checkpointing", False) and getattr(how, "keywords", {}).get("use_reentrant")
    )
