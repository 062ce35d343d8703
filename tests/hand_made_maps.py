"""Attention maps of a known type, made by hand."""

import numpy as np

KINDS = [
    "first-token",
    "current-token",
    "previous-token",
    "3 back",
    "induction",
    "vertical-stripes",
    "diffuse",
]


def words(t: int) -> list[int]:
    """A copy prompt: so many different tokens, twice."""
    return [i % (t // 2) for i in range(t)]


def pattern(kind: str, t: int, tokens: list[int]) -> np.ndarray:
    """A map of one kind; where it cannot look it rests on the first token."""
    w = np.zeros((t, t))
    stripes = [1, 3] if t < 16 else [2, t // 5, t // 3]
    for i in range(t):
        visible = [key for key in stripes if key < i]
        earlier = [j + 1 for j in range(i) if kind == "induction" and tokens[j] == tokens[i]]
        if kind == "diffuse":
            w[i, : i + 1] = 1 / (i + 1)
        elif kind == "vertical-stripes" and visible:
            w[i, visible] = 1 / len(visible)
        elif kind == "induction" and earlier:
            w[i, earlier[-1]] = 1
        elif kind in ("current-token", "previous-token") or kind.endswith("back"):
            w[i, max(0, i - back(kind))] = 1
        else:
            w[i, 0] = 1
    return w


def back(kind: str) -> int:
    return {"current-token": 0, "previous-token": 1}[kind] if kind.endswith("token") else int(kind.split()[0])


def noise(t: int, seed: int) -> np.ndarray:
    w = np.tril(np.random.default_rng(seed).gamma(1.0, size=(t, t)))
    return w / w.sum(1, keepdims=True)
