"""Attention maps and numbers in the compact form in which the page holds them."""

import base64
from typing import Any

import numpy as np


def pack_maps(maps: np.ndarray) -> dict[str, Any]:  # uint8 [L, heads, cells]
    """The shape and the values in base64: all of them, or indices (into the flattened array) and values of those above 0,
    whichever is shorter."""
    flat = np.ascontiguousarray(maps).reshape(-1)
    (indices,) = flat.nonzero()
    shape = list(maps.shape)
    if 5 * len(indices) < len(flat):
        data = indices.astype("<u4").tobytes() + flat[indices].tobytes()
        return {"kind": "list", "shape": shape, "count": len(indices), "data": _base64(data)}
    return {"kind": "whole", "shape": shape, "count": len(flat), "data": _base64(flat.tobytes())}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def rounded(values: np.ndarray) -> list[float]:  # [n]
    """To four significant digits."""
    return [float(f"{value:.4g}") for value in values]
