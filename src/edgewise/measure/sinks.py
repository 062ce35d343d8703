"""First-token sinks: attention to the first token of a document, where a softmax puts mass that has to go somewhere.

A gate may close, so a twin has another way to attend to nothing: its weights need not sum to 1.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data.batch import Batch
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.measure.forward import eval_mode, forward

SINK_TOKENS = 8192
"""Tokens that are enough for a mean: all weights of all heads are read."""


@dataclass(frozen=True)
class Sinks:
    """Attention weights of queries that are not themselves first tokens, on average."""

    first: Tensor  # [layers, heads]: weight on the first token of the document
    total: Tensor  # [layers, heads]: weight on all tokens; 1 if dense

    @property
    def heads(self) -> int:
        """Heads with more than half of a query's attention on the first token."""
        return int((self.first > 0.5).sum())

    def to_dict(self) -> dict[str, Any]:
        means = {"first_token": self.first.mean().item(), "attention": self.total.mean().item()}
        per_head = {"first_token_per_head": self.first.tolist(), "attention_per_head": self.total.tolist()}
        return {**means, "sink_heads": self.heads, **per_head}


@torch.no_grad()
def measure_sinks(model: nn.Module, batch: Batch, batch_size: int = 4) -> Sinks:
    """Measure the attention to first tokens on a batch, `batch_size` sequences at a time."""
    device = next(model.parameters()).device
    layers, heads = len(gates_of(model)), gates_of(model)[0].heads
    sums: list[Tensor] = []  # of each forward pass, [2, layers, heads]
    queries = 0
    with eval_mode(model):
        for micro_batch in batch.micro_batches(batch_size, device):
            index = torch.arange(micro_batch.ids.shape[1], device=device).expand_as(micro_batch.ids)
            positions = index if micro_batch.positions is None else micro_batch.positions
            is_later, first = (
                positions > 0,
                index - positions,
            )  # [n, t]: not first; the document's first token

            sums.append(torch.zeros(2, layers, heads, device=device))

            def add(layer: int, weights: Tensor, is_later: Tensor = is_later, first: Tensor = first) -> None:
                on_first = weights.gather(-1, first[:, None, :, None].expand(-1, heads, -1, 1))[..., 0]
                for i, attention in enumerate((on_first, weights.sum(-1))):
                    sums[-1][i, layer] = (attention * is_later[:, None]).sum((0, 2))

            with tap(model, edit={"weights": add}):
                forward(getattr(model, "base_model", model), micro_batch)
            queries += int(is_later.sum())
    if not queries:
        raise EdgewiseError("there is no token after a first one in these sequences")
    return Sinks(*(torch.stack(sums).cpu().double().sum(0) / queries).float())
