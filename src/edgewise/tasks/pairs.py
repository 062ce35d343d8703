"""A task: pairs of clean and corrupt prompts with answers, and the metric of a model's logits on them."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from edgewise.core.errors import EdgewiseError

Metric = Literal["logit difference", "probability difference"]
Split = Literal["fit", "validation", "test", "selection"]
"""Fit prompts choose the components of a circuit, and validation prompts must be explained too before one goes; selection
prompts choose the size, test prompts are held out."""
SEARCHED: tuple[Split, ...] = ("fit", "validation")
"""What a search for components depends on."""
MIN_SPLIT = 16
"""Pairs below which a task that does not say how it is split is not split: all of them are fit prompts."""
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
    sizes: tuple[int, ...] | None = None
    """Pairs for fit, validation, test and selection, in this order; the last ones may be missing. If not given, a quarter, a
    quarter and the rest; of many pairs a quarter each."""

    @property
    def splits(self) -> dict[Split, range]:
        """The numbers of the pairs of each split; a split without pairs is missing."""
        n = len(self.pairs)
        quarter = n // 4 if n >= MIN_SPLIT else 0
        selection = quarter if n >= 4 * MIN_SPLIT else 0
        rest = n - 2 * quarter - selection
        sizes = self.sizes or ((quarter, quarter, rest, selection) if quarter else (n, 0, 0, 0))
        splits: tuple[Split, ...] = (*SEARCHED, "test", "selection")
        ranges = zip(splits, accumulate((0, *sizes)), sizes, strict=False)
        return {split: range(start, start + size) for split, start, size in ranges if size}

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


def shuffle_answers(prompts: Prompts, seed: int) -> Prompts:
    """The prompts with answers of other prompts, right and wrong exchanged in every other one: a control without meaning,
    whose mean effect is about 0. Without the exchange, the years after one year would be mostly right after another."""
    n = len(prompts.last)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    answers_of = torch.empty_like(order).index_copy(0, order, order.roll(1)).to(prompts.columns.device)
    exchange = torch.ones(n, 1).index_fill(0, order[::2], -1.0).to(prompts.signs)
    return prompts._replace(columns=prompts.columns[answers_of], signs=prompts.signs[answers_of] * exchange)


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
