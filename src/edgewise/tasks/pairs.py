"""What a task is: pairs of prompts with answers, and the number a model's logits give for each."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from edgewise.core.errors import EdgewiseError

Metric = Literal["logit difference", "probability difference"]
PADDING = 0
"""Any token will do: it stands on the right, where a causal model does not see it."""


@dataclass(frozen=True)
class Pair:
    """A clean prompt and a corrupt one, which differ in a few tokens and have another right answer."""

    clean: str
    corrupt: str
    answers: tuple[str, ...]
    """What may follow the clean prompt, as it is written there: with its space, if it has one."""
    wrong: tuple[str, ...]
    """What may not, e.g. what would follow the corrupt prompt."""
    clean_ids: tuple[int, ...]
    corrupt_ids: tuple[int, ...]
    """As many as the clean ones."""
    answer_ids: tuple[int, ...]
    wrong_ids: tuple[int, ...]
    positions: dict[str, int]
    """Tokens of interest by name, the same in both prompts; always with "end", the last one."""


class Prompts(NamedTuple):
    """The pairs of a task as tensors, padded on the right."""

    clean: Tensor  # int64 [n, t]
    corrupt: Tensor  # int64 [n, t]
    last: Tensor  # int64 [n]: position of the last token
    columns: Tensor  # int64 [n, c]: token ids of answers and wrong answers, padded
    signs: Tensor  # float32 [n, c]: their weights in the metric, 0 for padding


@dataclass(frozen=True)
class Task:
    """Pairs of one kind, and how answers to them are scored."""

    name: str
    metric: Metric
    pairs: tuple[Pair, ...]
    skipped: dict[str, int]
    """Why drafts were skipped, and how many. (Of `copy` it is words that were.)"""

    def prompts(self, device: torch.device | str = "cpu") -> Prompts:
        """All pairs as tensors."""
        signs = []
        for pair in self.pairs:
            right, wrong = len(pair.answer_ids), len(pair.wrong_ids)
            each = (1 / right, -1 / wrong) if self.metric == "logit difference" else (1.0, -1.0)
            signs.append([each[0]] * right + [each[1]] * wrong)
        return Prompts(
            clean=_padded([pair.clean_ids for pair in self.pairs], PADDING, device),
            corrupt=_padded([pair.corrupt_ids for pair in self.pairs], PADDING, device),
            last=torch.tensor([len(pair.clean_ids) - 1 for pair in self.pairs], device=device),
            columns=_padded([pair.answer_ids + pair.wrong_ids for pair in self.pairs], PADDING, device),
            signs=_padded(signs, 0.0, device),
        )


def _padded(rows: list, filling: float, device: torch.device | str) -> Tensor:  # -> [n, longest]
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filling] * (longest - len(row))] for row in rows], device=device)


def score(
    logits: Tensor, prompts: Prompts, metric: Metric
) -> Tensor:  # [..., n, vocabulary] -> [..., n], logits at each prompt's last position
    """Positive where the answer is preferred.

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
