"""Describe a feature: the contexts that activate it most, and the tokens that it promotes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch, held_out_only
from edgewise.measure.forward import eval_mode, sequences_per_pass
from edgewise.models.architecture import architecture_of
from edgewise.models.info import info
from edgewise.models.registry import embedded_origin
from edgewise.training.transcoder.activations import mlp_activations
from edgewise.training.transcoder.transcoder import Transcoder

_PADDING = -1  # in place of a token before or after a sequence


class Context(NamedTuple):
    """A window of text in which a feature is active."""

    ids: list[int]
    tokens: list[str]
    """Decoded tokens; empty without a tokenizer."""
    activations: list[float]
    """Of the feature, at each token."""
    peak: int
    """Index of the largest, in this window."""
    sequence: int
    position: int
    """Where that is in the text that was searched."""

    @property
    def activation(self) -> float:
        return self.activations[self.peak]


@dataclass(frozen=True)
class PromotedTokens:
    """Tokens whose logits a feature raises and lowers most, and by how much."""

    raised: list[tuple[int, float]]
    lowered: list[tuple[int, float]]


@torch.no_grad()
def top_contexts(
    model: nn.Module,
    transcoder: Transcoder,
    batch: Batch,
    wanted: Sequence[tuple[int, int]],
    k: int = 8,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    around: int = 8,
) -> dict[tuple[int, int], list[Context]]:
    """The `k` windows in which each (layer, feature) pair is most active, at most one per sequence, strongest first; in one
    pass over the text. A feature that is never active has none."""
    for layer, feature in wanted:
        check_feature(transcoder, layer, feature)
    best: list[Tensor] | None = None
    first = 0
    with eval_mode(model):
        for micro_batch in batch.micro_batches(sequences_per_pass(batch), next(model.parameters()).device):
            x, _ = mlp_activations(model, micro_batch)
            a = _activations(transcoder, x, wanted).unflatten(1, micro_batch.ids.shape)  # [W, n, t]
            windows = _windows(a, micro_batch.ids, first, k, around)
            best = windows if best is None else _strongest(best, windows, k)
            first += len(micro_batch.ids)
    if best is None:
        return {feature: [] for feature in wanted}
    return {feature: _contexts([x[i] for x in best], tokenizer, around) for i, feature in enumerate(wanted)}


def _activations(transcoder: Transcoder, x: Tensor, wanted: Sequence[tuple[int, int]]) -> Tensor:  # -> [W, n]
    """Activations of the wanted features only."""
    a = x.new_empty(len(wanted), x.shape[1])
    for layer in {layer for layer, _ in wanted}:
        indices = [i for i, (l, _) in enumerate(wanted) if l == layer]
        features = torch.tensor([wanted[i][1] for i in indices], device=x.device)
        (encoder, bias), threshold = transcoder.reads(layer), transcoder.threshold[layer, features]
        h = x[layer] @ encoder[features].mT + bias[features]
        a[indices] = torch.where(h > threshold, h, 0.0).mT
    return a


def _windows(a: Tensor, ids: Tensor, first: int, k: int, around: int) -> list[Tensor]:
    """The k sequences with the highest peaks of each feature's a, [W, n, t]: the peaks [W, k], activations and ids around
    them [W, k, 2 around + 1], and sequence and position [W, k, 2]."""
    peaks, positions = a.max(2)  # [W, n]
    peaks, sequences = peaks.topk(min(k, peaks.shape[1]), 1)
    positions = positions.gather(1, sequences)
    padded, padded_ids = F.pad(a, (around, around)), F.pad(ids, (around, around), value=_PADDING)
    span = positions[..., None] + torch.arange(2 * around + 1, device=a.device)  # [W, k, 2 around + 1]
    features = torch.arange(len(a), device=a.device)[:, None, None]
    locations = torch.stack([sequences + first, positions], -1)
    return [
        peaks,
        padded[features, sequences[..., None], span],
        padded_ids[sequences[..., None], span],
        locations,
    ]


def _strongest(best: list[Tensor], windows: list[Tensor], k: int) -> list[Tensor]:
    both = [torch.cat(pair, 1) for pair in zip(best, windows, strict=True)]
    order = both[0].topk(min(k, both[0].shape[1]), 1).indices
    return [torch.take_along_dim(x, order.view(*order.shape, *[1] * (x.ndim - 2)), 1) for x in both]


def _contexts(best: list[Tensor], tokenizer: PreTrainedTokenizerBase | None, around: int) -> list[Context]:
    contexts = []
    for peak, activations, ids, (sequence, position) in zip(*(x.tolist() for x in best), strict=True):
        if peak <= 0:
            continue
        real = [i for i, token in enumerate(ids) if token != _PADDING]
        kept = [ids[i] for i in real]
        words = [] if tokenizer is None else [str(tokenizer.decode([token])) for token in kept]
        shown = [activations[i] for i in real]
        contexts.append(Context(kept, words, shown, real.index(around), sequence, position))
    return contexts


@torch.no_grad()
def promoted_tokens(
    model: nn.Module, transcoder: Transcoder, layer: int, feature: int, k: int = 8
) -> PromotedTokens:
    """Direct logit attribution of a feature: the sum of its decoders, through the final norm and the unembedding.

    The norm is applied as if nothing else were in the residual stream; all else only scales these logits by a common factor.
    Effects through later layers are left out.
    """
    check_feature(transcoder, layer, feature)
    base: Any = model
    norm, head = architecture_of(model).final_norm, base.get_output_embeddings()
    weight = head.weight.float()
    written = transcoder.writes(layer)[feature].sum(0)
    # large, so that the norm's epsilon is negligible; at zero a norm returns its bias
    stream = 1e3 * written / written.square().mean().sqrt().clamp_min(1e-30)
    both = norm(torch.stack([stream, torch.zeros_like(stream)]).to(head.weight.dtype)).float()
    logits = weight @ (both[0] - both[1])
    logits = logits - logits.mean()  # softmax is invariant to a constant
    k = min(k, len(logits))
    raised, lowered = logits.topk(k), (-logits).topk(k)
    return PromotedTokens(
        list(zip(raised.indices.tolist(), raised.values.tolist(), strict=True)),
        list(zip(lowered.indices.tolist(), (-lowered.values).tolist(), strict=True)),
    )


def check_feature(transcoder: Transcoder, layer: int, feature: int) -> None:
    if not (0 <= layer < transcoder.layers and 0 <= feature < transcoder.features):
        raise EdgewiseError(
            f"there is no feature {feature} in layer {layer}: the transcoder has {transcoder.layers} layers of "
            f"{transcoder.features} features, counted from 0"
        )


def feature_text(
    name: str, data: tuple[str, ...] | None, tokens: int, tokenizer: PreTrainedTokenizerBase
) -> Batch | None:
    """Text to search for contexts; None if there is none."""
    if data is not None:
        context = min(info(name).context or 1024, 1024)
        return held_out_only(data, tokenizer, context, tokens=tokens)
    origin = embedded_origin(name)
    if origin is None:
        return None
    text = origin.data()
    return text.held_out.select(slice(max(1, tokens // text.train.context)))
