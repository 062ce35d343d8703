"""The tap: read, count and edit activations inside the attention function, in every layer of every architecture.

with edgewise.tap(model) as activations:                      # edge counts only; no T x T matrix is kept
    model(ids)
print(activations.density, activations.edges_per_query)

with edgewise.tap(model, read=["weights"]) as activations:    # attention maps
    model(ids)
activations.last["weights"][3]                                # layer 3: [batch, heads, queries, keys]

def ablate_head_5(layer, y):                                  # y: [batch, heads, queries, d]
    return y.index_fill(1, torch.tensor([5]), 0.0) if layer == 3 else y

with edgewise.tap(model, edit={"outputs": ablate_head_5}):
    model(ids)
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import get_args

from torch import nn

from edgewise.core.errors import EdgewiseError
from edgewise.gating.activations import Activations, Edit, Site
from edgewise.gating.edge_gate import gates_of


@contextmanager
def tap(
    model: nn.Module, read: Iterable[Site] = (), edit: Mapping[Site, Edit] | None = None
) -> Iterator[Activations]:
    """Tap a model's attention inside a `with` block. Taps nest: the innermost edits last."""
    activations = Activations(frozenset(read), edit or {})
    unknown = (activations.read | activations.edit.keys()) - {*get_args(Site)}
    if unknown:
        raise EdgewiseError(
            f"cannot tap {', '.join(sorted(unknown))}; the sites are: {', '.join(get_args(Site))}"
        )
    gates = gates_of(model)
    if model.training and any(_has_reentrant_checkpointing(module) for module in model.modules()):
        raise EdgewiseError(
            "reentrant gradient checkpointing cuts the density out of the graph; enable it with use_reentrant=False"
        )
    for gate in gates:
        gate.taps.append(activations)
    try:
        yield activations
    finally:
        for gate in gates:
            gate.taps.remove(activations)


def _has_reentrant_checkpointing(module: nn.Module) -> bool:
    checkpoint = getattr(module, "_gradient_checkpointing_func", None)
    return bool(
        getattr(module, "gradient_checkpointing", False)
        and getattr(checkpoint, "keywords", {}).get("use_reentrant")
    )
