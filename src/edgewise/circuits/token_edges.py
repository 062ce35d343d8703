"""Token edges: which attention edges (head, query, key) a prediction uses.

Each is one term of a head's sum, y_i = sum_j w_ij v_j (v less the value of attending to nothing, which is added to the sum
where there is one). They are ranked by attribution, (clean term - corrupt term) . d metric / d y_i, prompt by prompt, and
the k best are kept: all other terms are what they were in the corrupt run. In a twin most terms do not exist at all, so the
open ones are the whole wiring of the prediction.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.circuits.curve import ranks, trace
from edgewise.circuits.replay import Replay
from edgewise.core.errors import EdgewiseError
from edgewise.gating.tap import tap


class TokenEdges(NamedTuple):
    """Of each prompt."""

    possible: list[int]
    """Pairs of a query and a key in sight, over all heads."""
    open: list[int]
    used: list[int]
    """The fewest that explain enough of the effect."""


class _Attention(NamedTuple):
    weights: Tensor  # [n, layers, heads, t, t]
    values: Tensor  # [n, layers, heads, t, d]


def token_edges(replay: Replay, threshold: float) -> TokenEdges:
    """Count a prompt's attention edges. Needs a replay of the whole text (`record(..., reuse_prefix=False)`)."""
    if replay.first:
        raise EdgewiseError("token edges are counted over the whole text: record it with reuse_prefix=False")
    clean, gradient = _attention(replay, replay.clean.hidden[0])
    corrupt, _ = _attention(replay, replay.corrupt.hidden[0])
    # nothing after a prompt's last token matters to it
    asked = torch.arange(clean.weights.shape[-1], device=gradient.device) <= replay.prompts.last[:, None]
    open_ = (clean.weights > 0) & asked[:, None, None, :, None]  # [n, layers, heads, queries, keys]
    attributed = clean.weights * (gradient @ clean.values.mT) - corrupt.weights * (
        gradient @ corrupt.values.mT
    )
    places = ranks(attributed.abs().flatten(1))  # [n, all]

    def explained(counts: Tensor) -> Tensor:  # int64 [p, n] -> [p, n]
        kept = [_scores_keeping(replay, corrupt, places < each.to(places.device)[:, None]) for each in counts]
        return replay.share(torch.stack(kept)).cpu()

    used = trace(explained, places.shape[1], replay.n, threshold)[2]
    lengths = replay.prompts.last + 1
    heads = clean.weights.shape[1] * clean.weights.shape[2]
    possible = heads * lengths * (lengths + 1) // 2
    return TokenEdges(possible.tolist(), open_.flatten(1).sum(1).tolist(), used.tolist())


def _attention(replay: Replay, embedding: Tensor) -> tuple[_Attention, Tensor]:
    """The weights and values of a run, and the gradient of the metric with regard to each head's output."""
    with torch.enable_grad(), tap(replay.model, read=["weights", "values", "outputs"]) as seen:
        metric = replay.scores(0, embedding[None].detach().requires_grad_())[0].sum()
        outputs = list(seen.last["outputs"].values())
        gradient = torch.autograd.grad(metric, outputs)
    weights, values = (
        torch.stack(list(seen.last[what].values()), 1).detach().float() for what in ("weights", "values")
    )
    groups = weights.shape[2] // values.shape[2]
    return _Attention(weights, values.repeat_interleave(groups, 2)), torch.stack(gradient, 1).float()


@torch.no_grad()
def _scores_keeping(replay: Replay, corrupt: _Attention, keep: Tensor) -> Tensor:  # bool [n, all] -> [n]
    kept = keep.view_as(corrupt.weights)
    others = (corrupt.weights * ~kept) @ corrupt.values  # [n, layers, heads, t, d]
    edits = {
        "weights": lambda layer, w: w * kept[:, layer],
        "outputs": lambda layer, y: y + others[:, layer].to(y),
    }
    with tap(replay.model, edit=edits):  # pyright: ignore
        return replay.scores(0, replay.clean.hidden[0][None])[0]
