"""What a trace explains: the logit of a token (given, or the most likely ones) minus the runner-up's.

The difference of two logits is the logarithm of their odds. Unlike a probability it does not saturate when the answer is
nearly certain, and unlike a logit it does not move when all logits do. Everything in a trace is measured on it.
"""

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
    """K logits, each minus that of the runner-up: the most likely token that is not among the K."""

    tokens: Tensor  # int64 [K]
    runner_up: int
    probability: Tensor  # [K]
    direction: Tensor  # [K, D]: rows of the unembedding, minus the runner-up's
    bias: Tensor  # [K]
    value: Tensor  # [K]: the model's

    @property
    def weights(self) -> Tensor:  # [K]
        """Probability of each among the K."""
        return self.probability / self.probability.sum()

    def log_odds(self, logits: Tensor) -> Tensor:  # [..., vocabulary] -> [...]
        """Logit minus the runner-up's, mean over the K by their probability: the measure of every effect in a trace."""
        return (logits[..., self.tokens] - logits[..., self.runner_up, None]) @ self.weights.to(logits)


def target_logits(model: PreTrainedModel, logits: Tensor, tokens: Tensor, scale: float = 1.0) -> TargetLogits:
    """The logits [vocabulary] of some tokens [K], as linear functions of the final norm's output.

    scale: The logits divided by the unembedding's output (`LinearisedPass.logit_scale`).
    """
    unembedding: Any = model.get_output_embeddings()
    weight, bias = unembedding.weight.detach(), getattr(unembedding, "bias", None)
    bias = torch.zeros(len(weight)).to(weight) if bias is None else bias.detach()
    runner_up = int(logits.index_fill(0, tokens, -torch.inf).argmax())
    return TargetLogits(
        tokens,
        runner_up,
        logits.softmax(-1)[tokens],
        scale * (weight[tokens] - weight[runner_up]),
        scale * (bias[tokens] - bias[runner_up]),
        logits[tokens] - logits[runner_up],
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
