"""What a trace explains: the log odds of a token (given, or the most likely ones) against all others.

    log p / (1 - p)  =  logit  -  logsumexp of the logits of all other tokens

Unlike a probability it does not saturate when the answer is nearly certain; unlike a logit it does not move when all logits
do; and unlike the difference to one runner-up it does not depend on which token happens to come second. Everything in a
trace is measured on it. The graph is about its linear part at the prompt, the logit minus the mean of the others' logits by
their probabilities; between two passes an exact mean of both passes' probabilities takes their place (`Secant`).
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
    """K logits, each minus the mean logit of all tokens that are not among the K."""

    tokens: Tensor  # int64 [K]
    probability: Tensor  # [K]
    others: Tensor  # [vocabulary]: probability of each token that is not among the K
    unembedding: Tensor  # [vocabulary, D]
    scale: float
    """The logits divided by the unembedding's output."""
    direction: Tensor  # [K, D]: rows of the unembedding, minus the mean of the others'
    bias: Tensor  # [K]
    value: Tensor  # [K]: the model's

    @property
    def weights(self) -> Tensor:  # [K]
        """Probability of each among the K."""
        return self.probability / self.probability.sum()

    def log_odds(self, logits: Tensor) -> Tensor:  # [..., vocabulary] -> [...]
        """Log odds, of several tokens by their mean logit: the measure of every effect in a trace."""
        return logits[..., self.tokens] @ self.weights.to(logits) - self._others(logits).logsumexp(-1)

    def linear_part(self, logits: Tensor) -> Tensor:  # [..., vocabulary] -> [...]
        """What the graph decomposes: the log odds with the others' probabilities kept, up to a constant."""
        return logits[..., self.tokens] @ self.weights.to(logits) - logits @ self.others.to(logits)

    def mean_direction(self, before: Tensor, after: Tensor) -> Tensor:  # [n, vocabulary] each -> [n, D]
        """How the log odds change with the final norm's output, exactly between two passes.

        Their derivative is minus the others' probabilities q. The change of a logsumexp lies between what the q of one pass
        and those of the other make of the change of logits, as it is convex; so some mean of the two gives it exactly.
        """
        tokens, weights = self.tokens.cpu(), self.weights.to(self.unembedding)
        # in float64, for the differences of nearly equal sums; on the CPU, as MPS has none
        before, after = (x.cpu().double().index_fill(-1, tokens, -torch.inf) for x in (before, after))
        q, q_after = before.softmax(-1), after.softmax(-1)
        moved = (after - before).index_fill(-1, tokens, 0.0)
        least, most = (q * moved).sum(-1), (q_after * moved).sum(-1)
        spread = most - least
        share = (after.logsumexp(-1) - before.logsumexp(-1) - least) / spread.clamp_min(1e-12)
        share = torch.where(spread > 1e-12, share.clamp(0, 1), 0.0)[..., None]
        q = (q + share * (q_after - q)).to(self.unembedding)
        answer = weights @ self.unembedding[self.tokens]
        return self.scale * (answer - q @ self.unembedding)

    def _others(self, logits: Tensor) -> Tensor:
        return logits.index_fill(-1, self.tokens, -torch.inf)


def target_logits(model: PreTrainedModel, logits: Tensor, tokens: Tensor, scale: float = 1.0) -> TargetLogits:
    """The logits [vocabulary] of some tokens [K], as linear functions of the final norm's output.

    scale: The logits divided by the unembedding's output (`LinearisedPass.logit_scale`).
    """
    unembedding: Any = model.get_output_embeddings()
    weight, bias = unembedding.weight.detach(), getattr(unembedding, "bias", None)
    bias = torch.zeros(len(weight)).to(weight) if bias is None else bias.detach()
    others = logits.index_fill(0, tokens, -torch.inf).softmax(0)
    return TargetLogits(
        tokens,
        logits.softmax(-1)[tokens],
        others,
        weight,
        scale,
        scale * (weight[tokens] - others.to(weight) @ weight),
        scale * (bias[tokens] - others.to(weight) @ bias),
        logits[tokens] - others @ logits,
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
