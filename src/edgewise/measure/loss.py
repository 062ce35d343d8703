"""Loss, density and edges of a model on held-out text, with the gates it is used with: deterministic."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data.batch import IGNORE, Batch
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.measure.forward import eval_mode, run_model, sequences_per_pass
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
    batch_size: int | None = None,
    all_reduce: Callable[[Tensor], Tensor] = lambda x: x,
    progress: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure a model on a batch.

    Args:
        model: Dense or a twin.
        batch: The text, or in a distributed run this process's share of it.
        batch_size: Sequences to a forward pass; as many as memory allows if not given.
        all_reduce: Sums a tensor over the processes of a distributed run.
        progress: Called after every forward pass.
    """
    device = next(model.parameters()).device
    layers, heads = len(gates_of(model)), gates_of(model)[0].heads
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, tokens
    edges = torch.zeros(3, layers, heads, dtype=torch.float64, device=device)  # opened, pairs, queries
    with eval_mode(model):
        for micro_batch in batch.micro_batches(
            batch_size or sequences_per_pass(batch, vocabulary_size(model)), device
        ):
            with tap(model) as activations:
                logits = run_model(model, micro_batch)
            loss = cross_entropy(logits, micro_batch.targets)
            sums += torch.stack([loss.double(), (micro_batch.targets != IGNORE).sum().double()])
            for count in activations.counts:
                for i, x in enumerate((count.opened, count.pairs, count.queries)):
                    edges[i, count.layer] += x.expand_as(count.opened).sum(0)
            progress()
    loss, tokens = all_reduce(sums).tolist()
    opened, pairs, queries = all_reduce(edges).cpu().float()
    if not tokens:
        raise EdgewiseError("there is nothing to predict in the held-out text")
    return Measured(loss / tokens, opened / pairs, opened / queries, int(tokens))
