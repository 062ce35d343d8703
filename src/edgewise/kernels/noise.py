"""Counter-based noise: each uniform number is a hash of (seed, sequence, head, query, key), not a draw from a stream.

Any block can be regenerated alone, so the backward pass stores no noise, and a result depends neither on how the work is cut
into blocks nor on how a batch is cut into micro-batches. `cpu.py` computes the same bits inside its loops.
"""

import torch
from torch import Tensor


def noise_keys(
    seed: int | Tensor, shape: tuple[int, int, int], device: torch.device, first_sequence: int = 0
) -> Tensor:
    """Two 32-bit keys per (sequence, head, query), int64 [2, batch, heads, queries]: all the state the noise needs.

    `shape` is (batch, heads, queries); `first_sequence` is the index of the batch's first sequence in a larger batch.
    """
    batch, heads, queries = shape
    z = torch.as_tensor(seed, device=device) + _signed(0x9E3779B97F4A7C15)
    # splitmix64, in which neighbouring seeds share nothing; int64 wraps, and the mask makes shifts logical
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    first = first_sequence * heads * queries
    row = torch.arange(first, first + batch * heads * queries, device=device).view(shape) * 0x9E3779B9
    keys = [_mix((row + word) & 0xFFFFFFFF) for word in (z, (z >> 32))]
    return torch.stack([_mix((x * 0x846CA68B) & 0xFFFFFFFF) for x in keys])


def uniform_noise(keys: Tensor, n_keys: int, dtype: torch.dtype) -> Tensor:
    """u of every (query, key) pair in (0, 1): noise keys [2, ..., queries] -> [..., queries, n_keys]."""
    column = torch.arange(n_keys, device=keys.device)
    x = _mix((keys[0, ..., None] + column * 0x9E3779B9) & 0xFFFFFFFF)
    x = ((x + keys[1, ..., None]) * 0x846CA68B) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return ((x >> 9).to(torch.float32) * 2.0**-23 + 2.0**-24).to(dtype)  # 24 bits: exact, never 0 or 1


def draw_seed() -> Tensor:
    """A seed from torch's global generator, int64 scalar, so that `torch.manual_seed` makes sampling reproducible."""
    return torch.randint(0, 2**62, ())


def _signed(x: int) -> int:
    """The int64 of the same 64 bits."""
    return x - 2**64 if x >= 2**63 else x


def _mix(x: Tensor) -> Tensor:
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    return x ^ (x >> 15)
