"""Why a head looks where it looks: its score, split over pairs of sources.

The score of a head is bilinear in what its query and its key read. With the norm frozen, both are sums over sources, so

    s(q, k) = scale * sum_ij  (R_q W_Q N r_i(q) + ...) . (R_k W_K N r_j(k) + ...)

where r_i(p) is what source i gives to position p of the stream there, and R turns queries and keys by their position in
models with rotary embeddings (elsewhere it is the identity). All that is no kept source (biases, the rest) is one more term
on either side, and the terms add up to the score.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.tap import tap
from edgewise.models.architecture import parts_of
from edgewise.models.hooks import replace_output
from edgewise.tracing.graph import Graph

_CLOSE = 1e-3


@dataclass(frozen=True)
class Look:
    """One attention edge's score."""

    layer: int
    head: int
    query: int
    key: int
    score: float
    pairs: Tensor
    """What each pair of sources adds, [m + 1, m + 1]: the query's by the key's. The last is all the rest."""


@dataclass(frozen=True)
class _Side:
    """How a head's queries or keys are made from the stream."""

    weight: Tensor  # [heads, D, d]
    turned: Tensor  # R, [T, d, d]
    used: Tensor  # as they met, [heads, T, d]

    def made(self, head: int, position: int, normed: Tensor) -> Tensor:  # [m, D] -> [m + 1, d]
        """What each source gives, and the rest."""
        parts = normed @ self.weight[head] @ self.turned[position]
        return torch.cat([parts, (self.used[head, position] - parts.sum(0))[None]])


@torch.no_grad()
def looks(
    model: PreTrainedModel, graph: Graph, sources: Tensor, cells: list[tuple[int, int, int, int]]
) -> list[Look]:
    """Of each attention edge (layer, head, query, key), what some sources contribute to its score."""
    frozen = graph.frozen
    streams: dict[int, Tensor] = {}

    def visit(layer: int, r: Tensor, at_heads: Tensor) -> None:
        if any(layer == cell[0] for cell in cells):
            streams[layer] = r

    frozen.push(graph.started(sources), lambda layer: graph.written(sources, layer), visit)
    sides = _sides(model, graph)
    found = []
    for layer, head, query, key in cells:
        normed = frozen.layers[layer].norm_1.push(streams[layer])  # [m, T, D]
        asks, offers = sides[layer]
        q, k = asks.made(head, query, normed[:, query]), offers.made(head, key, normed[:, key])
        score = frozen.scores[layer][head, query, key].item()
        found.append(Look(layer, head, query, key, score, _scale(graph, layer) * q @ k.T))
    return found


def _sides(model: PreTrainedModel, graph: Graph) -> list[tuple[_Side, _Side]]:
    frozen, parts = graph.frozen, parts_of(model)
    turned = _turns(model, frozen.ids)
    found = []
    for number, layer in enumerate(parts.layers):
        normed = frozen.layers[number].norm_1
        x = normed.push(frozen.streams[number]) + normed.shift
        sides = []
        for kind, used, turn in zip("qk", (frozen.queries, frozen.keys), turned[number], strict=True):
            weight, bias = layer.weights(kind)
            made = x @ weight if bias is None else x @ weight + bias
            got = torch.einsum("htd,tde->hte", made, turn)
            if not (got - used[number]).abs().max() < _CLOSE * used[number].abs().max():
                raise EdgewiseError(
                    f"{type(model).__name__} does more to its queries and keys than project and turn them, so why a head "
                    "looks somewhere cannot be told"
                )
            group = layer.heads // len(weight)
            sides.append(
                _Side(weight.repeat_interleave(group, 0), turn, used[number].repeat_interleave(group, 0))
            )
        found.append(tuple(sides))
    return found


def _turns(
    model: PreTrainedModel, ids: Tensor
) -> list[tuple[Tensor, Tensor]]:  # of each layer: [T, d, d] twice
    """R for queries and for keys, by sending each unit vector through."""
    parts = parts_of(model)
    d = parts.layers[0].columns["q"][1].shape[1]
    units = torch.eye(d)[:, None, None]  # [d, 1, 1, d]
    with ExitStack() as stack:
        for layer in parts.layers:
            for which, projection in enumerate(layer.projections):

                def send(y: Tensor, which=which, layer=layer) -> Tensor:
                    y = y.clone()
                    for kind in "qk":
                        place, columns = layer.columns[kind]
                        if place == which:
                            y[..., columns] = units.to(y).expand(-1, y.shape[1], len(columns), -1)
                    return y

                stack.enter_context(replace_output(projection, send))
        seen = stack.enter_context(tap(model, read=["queries", "keys"]))
        model(input_ids=ids[None].expand(d, -1), use_cache=False)
    return [
        tuple(seen.last[what][i][:, 0].transpose(0, 1) for what in ("queries", "keys"))  # pyright: ignore
        for i in range(len(parts.layers))
    ]


def _scale(graph: Graph, layer: int) -> float:
    """Of the scores, by what was seen."""
    q, k, s = graph.frozen.queries[layer], graph.frozen.keys[layer], graph.frozen.scores[layer]
    products = q @ k.repeat_interleave(len(q) // len(k), 0).mT
    sees = torch.ones_like(products[0]).tril().bool()
    return ((products * s)[:, sees].sum() / (products * products)[:, sees].sum()).item()
