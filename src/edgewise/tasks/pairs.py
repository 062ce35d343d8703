"""A task: pairs of clean and corrupt prompts with answers, and the metric of a model's logits on them."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from edgewise.core.errors import EdgewiseError

Metric = Literal["logit difference", "probability difference"]
PADDING = 0
"""Any token id will do: padding is on the right, where a causal model does not see it."""


@dataclass(frozen=True)
class Pair:
    """A clean and a corrupt prompt, which differ in a few tokens and have different right answers."""

    clean: str
    corrupt: str
    answers: tuple[str, ...]
    """Right answers to the clean prompt, as they follow it: with their space, if they have one."""
    wrong: tuple[str, ...]
    """Wrong answers to it, e.g. the right ones to the corrupt prompt."""
    clean_ids: tuple[int, ...]
    corrupt_ids: tuple[int, ...]
    """As many as `clean_ids`."""
    answer_ids: tuple[int, ...]
    wrong_ids: tuple[int, ...]
    positions: dict[str, int]
    """Positions of named tokens, the same in both prompts; always with "end", the last one."""


class Prompts(NamedTuple):
    """The pairs of a task as tensors, padded on the right."""

    clean: Tensor  # int64 [n, t]
    corrupt: Tensor  # int64 [n, t]
    last: Tensor  # int64 [n]: position of the last token
    columns: Tensor  # int64 [n, c]: token ids of answers and wrong answers, padded
    signs: Tensor  # float32 [n, c]: their weights in the metric, 0 for padding


@dataclass(frozen=True)
class Task:
    """Pairs of one kind, and the metric by which answers are scored."""

    name: str
    metric: Metric
    pairs: tuple[Pair, ...]
    skipped: dict[str, int]
    """Reasons for which drafts were skipped, and how many (of `copy`: words)."""

    def prompts(self, device: torch.device | str = "cpu") -> Prompts:
        """All pairs as tensors."""
        signs = []
        for pair in self.pairs:
            right, wrong = len(pair.answer_ids), len(pair.wrong_ids)
            is_mean = self.metric == "logit difference"
            signs.append([1 / right if is_mean else 1.0] * right + [-1 / wrong if is_mean else -1.0] * wrong)
        return Prompts(
            clean=_padded([pair.clean_ids for pair in self.pairs], PADDING, device),
            corrupt=_padded([pair.corrupt_ids for pair in self.pairs], PADDING, device),
            last=torch.tensor([len(pair.clean_ids) - 1 for pair in self.pairs], device=device),
            columns=_padded([pair.answer_ids + pair.wrong_ids for pair in self.pairs], PADDING, device),
            signs=_padded(signs, 0.0, device),
        )


def _padded(sequences: list, padding: float, device: torch.device | str) -> Tensor:  # -> [n, longest]
    longest = max(map(len, sequences))
    return torch.tensor([[*x, *[padding] * (longest - len(x))] for x in sequences], device=device)


def score(
    logits: Tensor, prompts: Prompts, metric: Metric
) -> Tensor:  # [..., n, vocabulary] -> [..., n], logits at each prompt's last position
    """Metric of each prompt, positive where the answer is preferred.

    Logit difference: the mean logit of the answers minus that of the wrong ones. Probability difference: the total
    probability of the answers minus that of the wrong ones.
    """
    values = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if metric == "probability difference":
        values = values.softmax(-1)
    columns = prompts.columns.expand(*logits.shape[:-1], -1)
    scores = (values.gather(-1, columns) * prompts.signs).sum(-1)
    if not scores.isfinite().all():
        raise EdgewiseError(f"the {metric} is not a number: the model's logits hold NaN or infinity")
    return scores
