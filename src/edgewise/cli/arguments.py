"""Argument types that several commands share."""

from typing import Annotated, TypeVar

import tyro

T = TypeVar("T")

ModelArgument = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
ModelsArgument = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="MODEL [TWIN]", help_behavior_hint="(required)"),
]
DataArgument = Annotated[
    tuple[str, ...] | None, tyro.conf.arg(metavar="DATA [DATA ...]", help_behavior_hint="")
]
Flags = Annotated[T, tyro.conf.arg(name="")]
"""A config dataclass whose fields are flags of the command, without a prefix."""
