"""Text that people read: tokens with invisible characters, and models' names as titles."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

_SYMBOLS = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": "␣"}


def visible(token: str, max_length: int = 14) -> str:
    """A token as a label: whitespace and control characters become symbols, a long text is cut."""
    text = token.strip(" ") or token or "∅"
    text = "".join(_SYMBOLS.get(c, c) if c != " " or text.isspace() else c for c in text)
    text = "".join("�" if unicodedata.category(c)[0] == "C" else c for c in text)
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def model_titles(names: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Models' names as a paper would print them: GPT2 and Sparse GPT2."""
    short = [re.sub("^gpt", "GPT", Path(name).name or name) for name in names]
    dense = [name for name, kind in zip(short, kinds, strict=True) if kind == "dense"]
    if len(kinds) == 2 and len(dense) == 1:
        return [dense[0] if kind == "dense" else f"Sparse {dense[0]}" for kind in kinds]
    titles = [
        name if kind == "dense" else f"Sparse {re.sub('[-_]?sparse$', '', name) or name}"
        for name, kind in zip(short, kinds, strict=True)
    ]
    return titles if len({*titles}) == len(titles) else list(names)
