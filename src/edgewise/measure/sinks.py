"""First-token sinks: attention that rests on the first token of its document, where a softmax puts what has to go somewhere.

A gate may close, so a twin has another way to attend to nothing: its weights need not sum to 1.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.measure.evaluation import evaluating, parts, run_rows

SINK_TOKENS = 8192
"""Tokens that are enough to see them: all weights of all heads are looked at."""


@dataclass(frozen=True)
class Sinks:
    """Of a query that is not itself a first token, on average."""

    first: Tensor  # [layers, heads]: weight on the first token of its document
    total: Tensor  # [layers, heads]: weight on all tokens; 1 if dense

    @property
    def heads(self) -> int:
        """Heads with more than half of a query's attention on the first token."""
        return int((self.first > 0.5).sum())

    def to_dict(self) -> dict[str, Any]:
        means = {"first_token": self.first.mean().item(), "attention": self.total.mean().item()}
        return {**means, "sink_heads": self.heads, "first_token_per_head": self.first.tolist()}


@torch.no_grad()
def measure_sinks(model: nn.Module, batch: Batch, rows: int = 4) -> Sinks:
    """Read each head's weights on a batch, `rows` rows at a time."""
    device = next(model.parameters()).device
    layers, heads = len(gates_of(model)), gates_of(model)[0].heads
    sums = torch.zeros(2, layers, heads, dtype=torch.float64, device=device)
    queries = 0
    with evaluating(model):
        for part in parts(batch, rows, device):
            place = torch.arange(part.ids.shape[1], device=device).expand_as(part.ids)
            positions = place if part.positions is None else part.positions
            later, first = positions > 0, place - positions  # [rows, t]: its document's first token

            def note(layer: int, weights: Tensor, later: Tensor = later, first: Tensor = first) -> None:
                on_first = weights.gather(-1, first[:, None, :, None].expand(-1, heads, -1, 1))[..., 0]
                for i, each in enumerate((on_first, weights.sum(-1))):
                    sums[i, layer] += (each * later[:, None]).sum((0, 2)).double()

            with tap(model, edit={"weights": note}):
                run_rows(getattr(model, "base_model", model), part)
            queries += int(later.sum())
    if not queries:
        raise EdgewiseError("there is no token after a first one in these rows")
    return Sinks(*(sums / queries).float().cpu())
