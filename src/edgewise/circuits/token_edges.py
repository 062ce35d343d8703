"""Token edges: which attention edges (head, query, key) a prediction uses.

Each is one term of a head's sum, y_i = sum_j w_ij v_j (v less the null value, which is added to the sum where there is one).
They are ranked by attribution, (clean term - corrupt term) . d metric / d y_i, prompt by prompt, and the k best are kept;
all other terms are those of the corrupt run. In a sparse twin most terms do not exist, so the open ones are all that a
prediction can use.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from edgewise.circuits.curve import needed_per_prompt, ranks
from edgewise.circuits.memory import token_edges_at_once
from edgewise.circuits.replay import Replay, record
from edgewise.circuits.result import TokenEdgeCounts
from edgewise.circuits.search import Search
from edgewise.core.errors import EdgewiseError
from edgewise.gating.tap import tap
from edgewise.tasks.pairs import Prompts


class _Attention(NamedTuple):
    weights: Tensor  # [n, layers, heads, t, t]
    values: Tensor  # [n, layers, heads, t, d]


def find_token_edges(search: Search) -> TokenEdgeCounts:
    """Count token edges, in chunks of prompts that fit into memory."""
    replay, config = search.replay, search.config
    counts = TokenEdgeCounts([], [], [])
    with search.bar("token edges", replay.n) as progress:
        for chunk in torch.arange(replay.n).split(token_edges_at_once(replay, config.max_bytes)):
            prompts = Prompts(*(x[chunk] for x in replay.prompts))
            all_tokens = record(replay.model, prompts, replay.metric, reuse_prefix=False)
            of_chunk = token_edges(all_tokens, config.threshold)
            counts.possible.extend(of_chunk.possible)
            counts.open.extend(of_chunk.open)
            counts.used.extend(of_chunk.used)
            progress(len(chunk))
    return counts


def token_edges(replay: Replay, threshold: float) -> TokenEdgeCounts:
    """Count the attention edges of each prompt; needs runs recorded at all tokens (`record(..., reuse_prefix=False)`)."""
    if replay.first:
        raise EdgewiseError("token edges need runs recorded at all tokens: record(..., reuse_prefix=False)")
    clean, gradient = _attention(replay, replay.clean.hidden[0])
    corrupt, _ = _attention(replay, replay.corrupt.hidden[0])
    # the metric does not depend on tokens after a prompt's last one
    queries = torch.arange(clean.weights.shape[-1], device=gradient.device) <= replay.prompts.last[:, None]
    is_open = (clean.weights > 0) & queries[:, None, None, :, None]  # [n, layers, heads, queries, keys]
    of_clean, of_corrupt = (run.weights * (gradient @ run.values.mT) for run in (clean, corrupt))
    order = ranks((of_clean - of_corrupt).abs().flatten(1))  # [n, edges]

    def keep_best(order: Tensor, counts: Tensor) -> Tensor:  # int64 [n, edges], [points, n] -> [points, n]
        kept = [order < count.to(order.device)[:, None] for count in counts]
        return torch.stack([_scores_with_token_edges(replay, corrupt, keep) for keep in kept])

    lengths = replay.prompts.last + 1
    heads = clean.weights.shape[1] * clean.weights.shape[2]
    return TokenEdgeCounts(
        possible=(heads * lengths * (lengths + 1) // 2).tolist(),
        open=is_open.flatten(1).sum(1).tolist(),
        used=needed_per_prompt(replay, keep_best, order, threshold),
    )


def _attention(replay: Replay, embedding: Tensor) -> tuple[_Attention, Tensor]:
    """Attention weights and values of a run, and the gradient of the metric with regard to head outputs, [n, layers, heads,
    t, d]."""
    with torch.enable_grad(), tap(replay.model, read=["weights", "values", "outputs"]) as attention:
        metric = replay.scores(0, embedding[None].detach().requires_grad_())[0].sum()
        outputs = list(attention.last["outputs"].values())
        gradient = torch.autograd.grad(metric, outputs)
    weights, values = (_stack(list(attention.last[name].values())) for name in ("weights", "values"))
    group = weights.shape[2] // values.shape[2]  # heads that share their values
    return _Attention(weights, values.repeat_interleave(group, 2)), _stack(gradient)


def _stack(layers: Sequence[Tensor]) -> Tensor:  # each [n, ..., d] -> [n, layers, ..., d]
    """The layers' tensors, filled up with zeros where heads are narrower than those of other layers (Gemma 4)."""
    width = max(x.shape[-1] for x in layers)
    return torch.stack([F.pad(x.detach().float(), (0, width - x.shape[-1])) for x in layers], 1)


@torch.no_grad()
def _scores_with_token_edges(
    replay: Replay, corrupt: _Attention, keep: Tensor
) -> Tensor:  # bool [n, edges] -> [n]
    kept = keep.view_as(corrupt.weights)
    others = (corrupt.weights * ~kept) @ corrupt.values  # [n, layers, heads, t, d]
    edits = {
        "weights": lambda layer, w: w * kept[:, layer],
        "outputs": lambda layer, y: y + others[:, layer, ..., : y.shape[-1]].to(y),
    }
    with tap(replay.model, edit=edits):  # pyright: ignore
        return replay.scores(0, replay.clean.hidden[0][None])[0]
