"""What a feature stands for: the texts that make it most active, and the tokens that it makes likelier."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch, held_out_only
from edgewise.measure.evaluation import evaluating, parts, rows_at_once
from edgewise.models.architecture import parts_of
from edgewise.models.info import info
from edgewise.models.registry import embedded_origin
from edgewise.training.transcoder.activations import mlp_activations
from edgewise.training.transcoder.transcoder import Transcoder

_NONE = -1  # stands for a token before or after a row


class Context(NamedTuple):
    """A piece of text in which a feature is active."""

    ids: list[int]
    tokens: list[str]
    """What the tokens say; empty without a tokenizer."""
    activations: list[float]
    """Of the feature, at each token."""
    peak: int
    """The place of the strongest, in this piece."""
    row: int
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


def top_contexts(
    model: nn.Module,
    transcoder: Transcoder,
    tokenizer: PreTrainedTokenizerBase | None,
    batch: Batch,
    layer: int,
    feature: int,
    k: int = 8,
    around: int = 8,
) -> list[Context]:
    """The pieces of text in which one feature is most active, at most one of each row; strongest first."""
    wanted = [(layer, feature)]
    return contexts_for(model, transcoder, batch, wanted, k, tokenizer=tokenizer, around=around)[wanted[0]]


@torch.no_grad()
def contexts_for(
    model: nn.Module,
    transcoder: Transcoder,
    batch: Batch,
    wanted: Sequence[tuple[int, int]],
    k: int = 8,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    around: int = 8,
) -> dict[tuple[int, int], list[Context]]:
    """The same for many (layer, feature) pairs, in one pass over the text. A feature that is never active has none."""
    for layer, feature in wanted:
        check_feature(transcoder, layer, feature)
    best: list[Tensor] | None = None
    first = 0
    with evaluating(model):
        for part in parts(batch, rows_at_once(batch), next(model.parameters()).device):
            x, _ = mlp_activations(model, part)
            a = _activations(transcoder, x, wanted).unflatten(1, part.ids.shape)  # [W, rows, t]
            found = _windows(a, part.ids, first, k, around)
            best = found if best is None else _strongest(best, found, k)
            first += len(part.ids)
    if best is None:
        return {each: [] for each in wanted}
    return {each: _contexts([x[i] for x in best], tokenizer, around) for i, each in enumerate(wanted)}


def _activations(transcoder: Transcoder, x: Tensor, wanted: Sequence[tuple[int, int]]) -> Tensor:  # -> [W, n]
    """Of the wanted features only."""
    a = x.new_empty(len(wanted), x.shape[1])
    for layer in {layer for layer, _ in wanted}:
        places = [i for i, (l, _) in enumerate(wanted) if l == layer]
        which = torch.tensor([wanted[i][1] for i in places], device=x.device)
        (encoder, bias), threshold = transcoder.reads(layer), transcoder.threshold[layer, which]
        h = x[layer] @ encoder[which].mT + bias[which]
        a[places] = torch.where(h > threshold, h, 0.0).mT
    return a


def _windows(a: Tensor, ids: Tensor, first: int, k: int, around: int) -> list[Tensor]:
    """Of each feature's a, [W, rows, t], the k rows with the highest peaks: the peaks [W, k], activations and ids around
    them [W, k, 2 around + 1], and row and position [W, k, 2]."""
    peaks, positions = a.max(2)  # [W, rows]
    peaks, rows = peaks.topk(min(k, peaks.shape[1]), 1)
    positions = positions.gather(1, rows)
    padded, padded_ids = F.pad(a, (around, around)), F.pad(ids, (around, around), value=_NONE)
    span = positions[..., None] + torch.arange(2 * around + 1, device=a.device)  # [W, k, 2 around + 1]
    features = torch.arange(len(a), device=a.device)[:, None, None]
    where = torch.stack([rows + first, positions], -1)
    return [peaks, padded[features, rows[..., None], span], padded_ids[rows[..., None], span], where]


def _strongest(best: list[Tensor], found: list[Tensor], k: int) -> list[Tensor]:
    both = [torch.cat(pair, 1) for pair in zip(best, found, strict=True)]
    order = both[0].topk(min(k, both[0].shape[1]), 1).indices
    return [torch.take_along_dim(x, order.view(*order.shape, *[1] * (x.ndim - 2)), 1) for x in both]


def _contexts(best: list[Tensor], tokenizer: PreTrainedTokenizerBase | None, around: int) -> list[Context]:
    contexts = []
    for peak, activations, ids, (row, position) in zip(*(x.tolist() for x in best), strict=True):
        if peak <= 0:
            continue
        real = [i for i, token in enumerate(ids) if token != _NONE]
        kept = [ids[i] for i in real]
        words = [] if tokenizer is None else [str(tokenizer.decode([token])) for token in kept]
        shown = [activations[i] for i in real]
        contexts.append(Context(kept, words, shown, real.index(around), row, position))
    return contexts


@torch.no_grad()
def promoted_tokens(
    model: nn.Module, transcoder: Transcoder, layer: int, feature: int, k: int = 8
) -> PromotedTokens:
    """What a feature does to the logits directly: all that it writes, through the final norm and the unembedding.

    As if nothing else were in the stream that the final norm reads; what else is there scales the logits, all alike. What
    later layers make of the feature is left out.
    """
    check_feature(transcoder, layer, feature)
    base: Any = model
    norm, head = parts_of(model).final_norm, base.get_output_embeddings()
    weight = head.weight.float()
    written = transcoder.writes(layer)[feature].sum(0)
    # large, so that the norm's epsilon does not count; a norm's answer to nothing is its bias
    stream = 1e3 * written / written.square().mean().sqrt().clamp_min(1e-30)
    both = norm(torch.stack([stream, torch.zeros_like(stream)]).to(head.weight.dtype)).float()
    logits = weight @ (both[0] - both[1])
    logits = logits - logits.mean()  # a softmax does not see what all tokens have in common
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
    """Rows to look for contexts in; none if there is no text."""
    if data is not None:
        context = min(info(name).context or 1024, 1024)
        return held_out_only(data, tokenizer, context, tokens=tokens)
    origin = embedded_origin(name)
    if origin is None:
        return None
    text = origin.data()
    return text.held_out.select(slice(max(1, tokens // text.train.context)))
