"""What `edgewise.models.registry` finds here: two dense models, and the twins that `edgewise sparsify` made of them."""

import re
from collections.abc import Sequence
from typing import get_args

from torch import nn

from edgewise.core.errors import EdgewiseError
from edgewise.models.registry import EmbeddedModel
from edgewise.pocket import addition, evaluate, folder, world
from edgewise.pocket.data import addition_data, pocket_data

SKILL_PROMPTS = 500
"""Held-out prompts of each kind by which a run's summary judges a model."""


class SumFormat:
    """Prompts of the addition models: 53+21 is read as 53+21=?????, and the digits are said at the question marks."""

    defaults: Sequence[str] = ("53+21", "36+28", "43+59")  # no carry, one, and two
    _SUM = re.compile(r"\s*(\d\s*\d)\s*\+\s*(\d\s*\d)\s*=?[\s?]*")

    def write(self, prompt: str) -> tuple[str, str]:
        match = self._SUM.fullmatch(prompt)
        if not match:
            raise EdgewiseError(f"an addition model reads sums of two-digit numbers, 53+21=, not {prompt!r}")
        question = f"{match[1]}+{match[2]}".replace(" ", "")
        return question, f"{question}=?????"

    def is_answer(self, token: str) -> bool:
        return token == "?"


def skills(model: nn.Module) -> dict[str, float]:
    """Scores on held-out prompts of each kind."""
    return evaluate.measure(model, SKILL_PROMPTS)


def was_trained_on(kind: str, combination: Sequence[str] | None) -> bool:
    """Whether the training text of the pocket model may contain a sentence of this kind and combination."""
    if combination is None or kind not in get_args(world.Kind):
        return False
    return not world.is_held_out(kind, combination)  # pyright: ignore


def _text_model(name: str) -> EmbeddedModel:
    return EmbeddedModel(
        name=name,
        folder=folder(name),
        dense="pocket",
        make_data=pocket_data,
        skills=skills,
        vocabulary={word: i for i, word in enumerate(world.VOCABULARY)},
        was_trained_on=was_trained_on,
    )


def _addition_model(name: str) -> EmbeddedModel:
    return EmbeddedModel(
        name=name,
        folder=folder(name),
        dense="pocket-addition",
        make_data=addition_data,
        skills=evaluate.measure_addition,
        vocabulary={token: i for i, token in enumerate(addition.VOCABULARY)},
        prompt_format=SumFormat(),
    )


MODELS = (
    _text_model("pocket"),
    _addition_model("pocket-addition"),
    _text_model("pocket-sparse"),
    _addition_model("pocket-addition-sparse"),
)
