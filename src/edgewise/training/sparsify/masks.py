"""Attention masks of the controls: by weight, at random, the top k of a head or of a layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from edgewise.data import Batch
from edgewise.gating.tap import tap
from edgewise.kernels.equations import sink_edges
from edgewise.measure.loss import measure
from edgewise.measure.reference import Reference


class Mask(Protocol):
    """Which edges stay, given a layer's attention weights."""

    def __call__(self, layer: int, weights: Tensor) -> Tensor:
        """[batch, heads, queries, keys] -> the same shape, or [heads, queries, keys]"""
        ...


def threshold_mask(threshold: float, sinks: bool = True) -> Mask:
    """Edges of more weight than a threshold; without sinks, none to the first token."""

    def mask(layer: int, weights: Tensor) -> Tensor:
        is_open = weights > threshold
        return (is_open if sinks else is_open & ~sink_edges(weights > 0)).to(weights)

    return mask


def random_mask(density_per_head: Tensor, context: int, seed: int) -> Mask:  # [layers, heads]
    """A random mask with each head's density, drawn once for each pair of positions, so that training can adapt to it."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(*density_per_head.shape, context, context, generator=generator)
    masks = uniform < density_per_head[..., None, None].cpu()

    def mask(layer: int, weights: Tensor) -> Tensor:
        queries, keys = weights.shape[-2:]  # the last query is at the last key
        return masks[layer, :, keys - queries : keys, :keys].to(weights)

    return mask


def top_k_mask(edges_per_query_per_head: Tensor) -> Mask:  # [layers, heads]
    """The k largest weights of each head and query, k the mean over all heads; a fractional k alternates over queries."""
    k = edges_per_query_per_head.mean().item()

    def mask(layer: int, weights: Tensor) -> Tensor:
        return _top_k(weights.detach(), k)

    return mask


def top_k_of_layers_mask(edges_per_query_per_head: Tensor) -> Mask:  # [layers, heads]
    """The k largest weights of each layer and query over all heads, k the layer's sum."""
    k_per_layer = edges_per_query_per_head.sum(1).tolist()

    def mask(layer: int, weights: Tensor) -> Tensor:
        _, heads, _, keys = weights.shape
        all_heads = weights.detach().transpose(1, 2).flatten(2)  # [batch, queries, heads * keys]
        chosen = _top_k(all_heads[:, None], k_per_layer[layer], n_keys=keys)[:, 0]
        return chosen.unflatten(2, (heads, keys)).transpose(1, 2)

    return mask


TOP_K = {"top-k": top_k_mask, "top-k of layers": top_k_of_layers_mask}


def _top_k(weights: Tensor, k: float, n_keys: int | None = None) -> Tensor:
    """[batch, heads, queries, n] -> ones at each query's k largest, zeros elsewhere.

    `n_keys`: number of keys if it is not n; the last query is at the last key.
    """
    _, heads, queries, n = weights.shape
    n_keys = n_keys or n
    position = torch.arange(n_keys - queries, n_keys, device=weights.device)
    head = torch.arange(heads, device=weights.device)[:, None]
    dither = (position * 0.618034 + head * 0.754878) % 1.0  # evenly spread over [0, 1)
    count = (k + dither).floor().long()  # [heads, queries]
    # as integers in the same order, so that the first of equal weights counts; MPS has no float64 for that
    order = weights.float().view(torch.int32).long() * n - torch.arange(n, device=weights.device)
    largest = order.topk(min(int(count.max()), n), -1).indices
    kept = torch.arange(largest.shape[-1], device=count.device) < count[..., None]
    kept = kept & (weights.gather(-1, largest) > 0)
    return torch.zeros_like(weights).scatter(-1, largest, kept.to(weights))


@contextmanager
def masked(model: nn.Module, mask: Mask | None) -> Iterator[list[Tensor]]:
    """Attend through a mask inside a `with` block, without renormalising, as gates do.

    Without gradients, the list receives open edges and (query, key) pairs of each layer's calls, [2].
    """
    counts: list[Tensor] = []
    if mask is None:
        yield counts
        return

    def edit(layer: int, weights: Tensor) -> Tensor:
        chosen = mask(layer, weights).expand_as(weights)
        if not torch.is_grad_enabled():
            is_pair = weights > 0  # 0 outside of a document and in the future
            counts.append(torch.stack([(chosen * is_pair).sum(), is_pair.sum()]))
        return weights * chosen

    with tap(model, edit={"weights": edit}):
        yield counts


def measure_masked(
    model: nn.Module, mask: Mask | None, held_out: Batch, reference: Reference | None = None
) -> dict[str, float]:
    """Held-out loss and density of a model behind a mask; with the dense model, also loss difference, its error, and KL."""
    with torch.no_grad(), masked(model, mask) as counts:
        measured = measure(model, held_out, reference=reference)
    against = measured.against_dense
    values = {"ce": measured.ce}
    if against is not None:
        values |= {"delta_ce": against.delta_ce, "delta_ce_error": against.delta_ce_error, "kl": against.kl}
    if mask is None:
        return {**values, "density": 1.0}
    n_open, n_pairs = torch.stack(counts).sum(0).tolist()
    return {**values, "density": n_open / n_pairs}
