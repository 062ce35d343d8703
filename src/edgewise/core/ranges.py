"""Ranges of arguments: declared once, as annotated types of a config's fields, and checked in one place for API and CLI.

@dataclass(frozen=True)
class Config:
    seed: Seed = 0
    batch_size: Size | None = None

    def __post_init__(self) -> None:
        check_fields(self)
"""

import math
import numbers
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Interval

from edgewise.core.errors import EdgewiseError
from edgewise.core.quantities import byte_count, shortened, token_count


@dataclass(frozen=True)
class Quantity:
    """Metadata of a text that stands for a number, and the range of that number."""

    parse: Callable[[str], int]
    range: Interval


ConfigType = TypeVar("ConfigType")

Seed = Annotated[int, Interval(ge=0, lt=2**32)]
Size = Annotated[int, Interval(ge=1, le=2**24)]
"""Of a batch, of a dictionary of features, of anything that is held in memory at once."""
Context = Annotated[int, Interval(ge=2, le=2**24)]
"""Tokens per sequence."""
Position = Annotated[int, Interval(ge=0, le=2**24)]
"""Of a token, a layer, a feature: counted from 0."""
PromptCount = Annotated[int, Interval(ge=1, le=100_000)]
IntegrationSteps = Annotated[int, Interval(ge=1, le=1000)]
Columns = Annotated[int, Interval(ge=1, le=1000)]
Tokens = Annotated[int, Interval(ge=1, le=10**15)]
Rank = Annotated[int, Interval(ge=1, le=4096)]
"""Of LoRA adapters."""
OpenShare = Annotated[float, Interval(gt=0, lt=1)]
Share = Annotated[float, Interval(gt=0, le=1)]
Minutes = Annotated[float, Interval(gt=0, le=1_000_000)]
LearningRate = Annotated[float, Interval(gt=0, le=10)]
Nats = Annotated[float, Interval(gt=0, le=1000)]
NotNegative = Annotated[float, Interval(ge=0, le=1_000_000)]
Offset = Annotated[float, Interval(ge=-10_000, le=10_000)]
"""b of a gate."""
Factor = Annotated[float, Interval(ge=-1_000_000, le=1_000_000)]
"""What an activation is multiplied by."""
TOKENS = Quantity(token_count, Interval(ge=1, le=10**15))
"""Of a text such as 200M. tyro needs it beside the metavar: `Annotated[str | None, TOKENS, tyro.conf.arg(metavar="N")]`."""
MEMORY = Quantity(byte_count, Interval(ge=1, le=2**50))
"""Of a text such as 2G."""


def config_of(kind: type[ConfigType], given: ConfigType | None) -> ConfigType:
    """The config given, or the default one; anything else, such as a bare prompt, is refused in one sentence."""
    config = kind() if given is None else given
    if not isinstance(config, kind):
        raise EdgewiseError(f"`config` must be a {kind.__name__}, not {shortened(config)}")
    return config


def check_fields(config: Any) -> None:
    """Refuse a dataclass with a field of another type than declared, or outside its range, in one sentence."""
    for name, hint in _hints(type(config)).items():
        check_argument(name, getattr(config, name), hint)


def check_argument(name: str, value: Any, hint: Any) -> None:
    """Refuse an argument of another type than `hint`, or outside the range in its annotation."""
    members, shared = _members(hint)
    is_quantity = any(isinstance(item, Quantity) for item in shared)
    value = cast(Any, str(value) if is_quantity and isinstance(value, int) else value)
    for member in members:
        base, *metadata = get_args(member) if get_origin(member) is Annotated else (member,)
        if _fits(value, base):
            if get_origin(base) is tuple:
                for item in value:
                    check_argument(name, item, get_args(base)[0])
            if value is not None:
                for item in (*shared, *metadata):
                    _check_range(name, value, item)
            return
    expected = " or ".join(filter(None, map(_described, members)))
    raise EdgewiseError(f"`{name}` must be {expected}, not {shortened(value)}")


@cache
def _hints(config: type) -> dict[str, Any]:
    hints = get_type_hints(config, include_extras=True)
    return {name: hints[name] for name in getattr(config, "__dataclass_fields__", {})}


def _members(hint: Any) -> tuple[list[Any], list[Any]]:
    """The members of a union, or the one type, and the metadata that annotates all of it."""
    shared: list[Any] = []
    if get_origin(hint) is Annotated:
        hint, *shared = get_args(hint)
    is_union = get_origin(hint) in (Union, types.UnionType)
    return list(get_args(hint)) if is_union else [hint], shared


def _fits(value: Any, base: Any) -> bool:
    """Whether a value is of a type. Types that are not checked fit any value."""
    if base is type(None):
        return value is None
    if get_origin(base) is Literal:
        return isinstance(value, str) and value in get_args(base)
    if base is bool:
        return isinstance(value, bool)
    if base is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if base is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    if get_origin(base) is tuple:
        return isinstance(value, tuple | list)
    return isinstance(value, str) if base is str else True


def _described(base: Any) -> str:
    base = get_args(base)[0] if get_origin(base) is Annotated else base
    if get_origin(base) is Literal:
        return f"one of {', '.join(map(str, get_args(base)))}"
    if get_origin(base) is tuple:
        return "a tuple"
    return {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}.get(base, "")


def _check_range(name: str, value: Any, range_: Any) -> None:
    number = value
    if isinstance(range_, Quantity):
        number, range_ = range_.parse(value), range_.range
    if not isinstance(range_, Interval):
        return
    if isinstance(number, float) and not math.isfinite(number):
        raise EdgewiseError(f"`{name}` must be a finite number, not {value}")
    bounds = (
        (range_.ge, "at least", lambda bound: number >= bound),
        (range_.gt, "above", lambda bound: number > bound),
        (range_.le, "at most", lambda bound: number <= bound),
        (range_.lt, "below", lambda bound: number < bound),
    )
    given = [(bound, words, holds) for bound, words, holds in bounds if bound is not None]
    if all(holds(bound) for bound, _, holds in given):
        return
    # a bound that only says what is absurd is not worth naming to somebody at the other end
    is_plain = all(isinstance(bound, int | float) and abs(bound) < 1e4 for bound, _, _ in given)
    named = given if is_plain else [item for item in given if not item[2](item[0])]
    phrase = " and ".join(f"{words} {bound:,}" for bound, words, _ in named)
    shown = value if isinstance(value, str) and len(value) < 40 else shortened(value)
    raise EdgewiseError(f"`{name}` must be {phrase}, not {shown}")
