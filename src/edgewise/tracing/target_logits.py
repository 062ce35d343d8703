"""The logits that a trace explains: of one given token, or of the most likely ones."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError

MAX_LOGITS, LOGIT_PROBABILITY = 10, 0.95
"""By default the fewest tokens that have this probability together, but no more than so many."""


@dataclass(frozen=True)
class TargetLogits:
    """K logits, each minus the mean over the vocabulary, which no probability depends on."""

    tokens: Tensor  # int64 [K]
    probability: Tensor  # [K]
    direction: Tensor  # [K, D]: centred rows of the unembedding
    bias: Tensor  # [K]
    value: Tensor  # [K]: the model's

    @property
    def weights(self) -> Tensor:  # [K]
        """Probability of each among the K."""
        return self.probability / self.probability.sum()


def target_logits(model: PreTrainedModel, logits: Tensor, tokens: Tensor) -> TargetLogits:
    """The logits [vocabulary] of some tokens [K], as linear functions of the final norm's output."""
    unembedding: Any = model.get_output_embeddings()
    weight, bias = unembedding.weight.detach(), getattr(unembedding, "bias", None)
    bias = torch.zeros(len(weight)) if bias is None else bias.detach()
    return TargetLogits(
        tokens,
        logits.softmax(-1)[tokens],
        weight[tokens] - weight.mean(0),
        bias[tokens] - bias.mean(),
        logits[tokens] - logits.mean(),
    )


def most_likely_tokens(logits: Tensor) -> Tensor:  # [vocabulary] -> int64 [K]
    """The fewest tokens with a probability of `LOGIT_PROBABILITY` together, at most `MAX_LOGITS`."""
    ordered = logits.softmax(-1).sort(descending=True)
    count = int((ordered.values.cumsum(0) < LOGIT_PROBABILITY).sum()) + 1
    return ordered.indices[: min(count, MAX_LOGITS)]


def token_of_text(
    tokenizer: PreTrainedTokenizerBase, text: str, vocabulary: int, name: str
) -> Tensor:  # int64 [1]
    """The single token of a text, as it stands or after a space."""
    for candidate in (text, f" {text}"):
        try:
            ids: Any = tokenizer(candidate, add_special_tokens=False)["input_ids"]
        except Exception:  # a tokenizer without an unknown token raises an error of its own
            continue
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id and ids[0] < vocabulary:
            return torch.tensor(ids)
    raise EdgewiseError(f"`logit` {text!r} is not one token of {name}'s vocabulary")
