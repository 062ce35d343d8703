"""Numbers that are written with a unit: tokens and memory."""

import re

from edgewise.core.errors import EdgewiseError

_THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MAX_LENGTH = 24
_SHOWN = 40


def token_count(text: str) -> int:
    """200M, 1.5B, 40_000: a number of tokens."""
    return _parse(
        text, r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)([KMB]?)", _THOUSANDS, "number of tokens; write 500K, 200M"
    )


def byte_count(text: str) -> int:
    """500M, 2G, 2GiB: an amount of memory in bytes."""
    return _parse(
        text, r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)I?B?", _BYTES, "amount of memory; write 500M or 2G"
    )


def _parse(text: str, pattern: str, units: dict[str, int], what: str) -> int:
    match = re.fullmatch(pattern, text.strip().upper())
    if not match or len(text) > _MAX_LENGTH:
        raise EdgewiseError(f"{shortened(text)} is no {what}")
    return round(float(match[1].replace("_", "")) * units[match[2]])


def shortened(value: object) -> str:
    """A value as an error quotes it: not hundreds of digits."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 10]}... ({len(text):,} characters)"
