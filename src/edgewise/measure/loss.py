"""Loss, density and edges of a model on held-out text, with the gates it is used with: deterministic; and how far a twin is
from its dense model."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data.batch import IGNORE, Batch
from edgewise.gating.activations import Activations
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.measure.dense_comparison import (
    N_SUMS,
    DenseComparison,
    comparison_sums,
    dense_comparison,
)
from edgewise.measure.distillation import positionwise_terms
from edgewise.measure.forward import eval_mode, run_model, sequences_per_pass
from edgewise.measure.reference import Reference
from edgewise.measure.sinks import Sinks
from edgewise.models.architecture import vocabulary_size


@dataclass(frozen=True)
class Measured:
    """Loss, density and edges of a model on held-out text."""

    ce: float
    """Cross-entropy in nats per token."""
    density_per_head: Tensor  # [layers, heads]
    """Share of the possible edges that are open."""
    edges_per_query_per_head: Tensor  # [layers, heads]
    tokens: int
    """Tokens predicted."""
    sinks: Sinks | None = None
    """Attention to first tokens, if it was measured."""
    against_dense: DenseComparison | None = None
    """Against the dense model on the same text, if that was given."""

    @property
    def density(self) -> float:
        return self.density_per_head.mean().item()

    @property
    def edges_per_query(self) -> float:
        return self.edges_per_query_per_head.mean().item()

    @property
    def heads_closed(self) -> int:
        return int((self.density_per_head == 0).sum())

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.ce, 700.0))

    def to_dict(self) -> dict[str, Any]:
        return {
            "ce": self.ce,
            "perplexity": self.perplexity,
            "density": self.density,
            "edges_per_query": self.edges_per_query,
            "heads_closed": self.heads_closed,
            "tokens": self.tokens,
            "density_per_head": self.density_per_head.tolist(),
            "edges_per_query_per_head": self.edges_per_query_per_head.tolist(),
            **({} if self.sinks is None else {"sinks": self.sinks.to_dict()}),
            **({} if self.against_dense is None else {"against_dense": asdict(self.against_dense)}),
        }


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:  # [n, t, vocabulary], [n, t] -> []
    """Cross-entropy in nats, summed over the positions that have a target."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )


@torch.no_grad()
def measure(
    model: nn.Module,
    batch: Batch,
    *,
    batch_size: int | None = None,
    all_reduce: Callable[[Tensor], Tensor] = lambda x: x,
    progress: Callable[[], None] = lambda: None,
    reference: Reference | None = None,
    first_sequence: int = 0,
) -> Measured:
    """Measure a model on a batch.

    Args:
        model: Dense or a twin.
        batch: The text, or in a distributed run this process's share of it.
        batch_size: Sequences to a forward pass; as many as memory allows if not given.
        all_reduce: Sums a tensor over the processes of a distributed run.
        progress: Called after every forward pass.
        reference: The dense model to compare with, if any.
        first_sequence: Index of the first sequence in the reference's text.
    """
    device = next(model.parameters()).device
    gates = gates_of(model)
    # in double precision on the CPU: some devices have none
    sums = torch.zeros(2 + N_SUMS, dtype=torch.float64)  # loss, tokens, comparison
    edges = torch.zeros(3, len(gates), gates[0].all_heads, dtype=torch.float64)
    size = batch_size or sequences_per_pass(batch, vocabulary_size(model) * (1 if reference is None else 2))
    with eval_mode(model):
        for micro_batch in batch.micro_batches(size, device):
            with tap(model) as activations:
                logits = run_model(model, micro_batch)
            if reference is None:
                sums[0] += cross_entropy(logits, micro_batch.targets).cpu()
            else:
                dense_logits = reference.logits(first_sequence, micro_batch)
                terms = positionwise_terms(logits, dense_logits, micro_batch.targets)
                terms = terms._replace(**{name: x.cpu() for name, x in terms._asdict().items()})
                sums[0] += terms.ce.double().sum()
                sums[2:] += comparison_sums(terms, micro_batch.targets.cpu())
            sums[1] += (micro_batch.targets != IGNORE).sum().cpu()
            first_sequence += len(micro_batch.ids)
            edges += _edge_counts(activations, device).cpu()
            progress()
    sums = all_reduce(sums)
    loss, tokens = sums[:2].tolist()
    opened, pairs, queries = all_reduce(edges).cpu().float()
    if not tokens:
        raise EdgewiseError("there is nothing to predict in the held-out text")
    against_dense = None if reference is None else dense_comparison(sums[2:])
    return Measured(loss / tokens, opened / pairs, opened / queries, int(tokens), against_dense=against_dense)


def _edge_counts(activations: Activations, device: torch.device) -> Tensor:  # -> [3, layers, heads]
    """Open edges, visible pairs and queries of a forward pass, whose layers may be on several devices."""
    counts = [
        torch.stack([x.expand_as(c.opened).sum(0).float() for x in (c.opened, c.pairs, c.queries)])
        for c in sorted(activations.counts, key=lambda count: count.layer)
    ]
    return torch.stack([count.to(device) for count in counts], 1)
