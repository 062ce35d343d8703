"""Argument types that several commands share."""

from dataclasses import dataclass
from typing import Annotated, TypeVar

import tyro

from edgewise.core.devices import Dtype

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


@dataclass(frozen=True)
class Placement:
    """Where models run, and in which precision."""

    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto"
    """Where models run: cpu, cuda, cuda:1 or mps; auto is a GPU if there is one, split spreads each model over all GPUs and
    main memory."""
    dtype: Dtype = "auto"
    """Precision of weights and activations; auto is the checkpoint's own. Gates compute in float32 at least."""


PLACEMENT = Placement()
PlacementFlags = Flags[Placement]
