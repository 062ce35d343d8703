"""Run by tests/test_triton.py: the Triton backend against the reference.

python tests/triton_parity.py gates|visibility|precision|shapes
"""

import sys
from typing import Any

import torch
import triton_interpreter  # noqa: F401  (before triton)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gate import inputs, with_gradients

from edgewise.kernels.dispatch import gated_attention
from edgewise.kernels.equations import GateSpec, reference, visible_keys
from edgewise.kernels.operator import BACKENDS
from edgewise.kernels.triton_backend import LaunchPlan, Tiles, triton_backend

SMALL = LaunchPlan(Tiles(16, 16, 4, 1), Tiles(16, 16, 4, 1), Tiles(16, 16, 4, 1))
BACKENDS["small tiles"] = triton_backend(lambda width, dtype: SMALL)


def attend(*arguments: Any):
    return gated_attention(*arguments, backend="small tiles")


def check(tensors: Any, spec: GateSpec, tolerance: float = 1e-9) -> None:
    double = [x.double() for x in tensors]
    expected, expected_gradients = with_gradients(reference, double, spec)
    got, gradients = with_gradients(attend, tensors, spec)
    assert torch.equal(got.open_edges.double(), expected.open_edges), (got.open_edges, expected.open_edges)
    pairs = [(got.y, expected.y), (got.expected_edges, expected.expected_edges)]
    for a, e in [*pairs, *zip(gradients, expected_gradients, strict=True)]:
        assert torch.isfinite(a).all()
        assert (a.double() - e).norm() <= tolerance * (1 + e.norm()), (a.double() - e).abs().max()


def gates() -> None:
    """Both gates, sampled and not, two query heads to a key/value head, with a cached past; one closed head."""
    for kappa in (1.0, 0.0):
        for mode, sinks in (("sample", False), ("deterministic", True)):
            closed = torch.tensor([False, True])
            check(
                inputs(1, 1, 2, 18, 21, 5),
                GateSpec(kappa, mode, 0.4, None, sinks, seed=2**40 + 3, closed=closed),
            )


def visibility() -> None:
    """Left padding and per-head masks, packed documents, sliding windows, queries that see no key."""
    tensors = inputs(2, 1, 1, 36, 36, 4)
    pads = torch.ones(2, 1, 36, 36, dtype=torch.bool)
    pads[0, :, :, :19] = False
    pads[1, :, 30:] = False  # padded queries
    own = torch.arange(36)
    documents = torch.where(own < 20, 0, 20)
    padded = torch.where(own < 33, (own - 6).clamp(0), 99)  # a window, then queries that see no key
    check(tensors, GateSpec(1.0, "sample", 0.5, visible_keys(36, 36, pads, own.device), sinks=False, seed=1))
    starts = torch.stack([documents, padded])
    check(tensors, GateSpec(1.0, "sample", 0.5, None, sinks=False, seed=1, first_sequence=3, starts=starts))


def precision() -> None:
    """Half precision and float32 with sums in float32; widths that are no power of 2; large scores."""
    spec = GateSpec(1.0, "deterministic", 0.1, None, sinks=False)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)):
        tensors = [x.to(dtype) for x in inputs(1, 1, 1, 17, 17, 80 if dtype == torch.float16 else 20)]
        tensors[3] = torch.tensor([1.5])
        check(tensors, spec, tolerance)
    q, k, v, b = inputs(1, 1, 1, 17, 17, 4)
    check((200 * q, k, v, b), spec)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    shape=st.tuples(
        *(st.integers(1, n) for n in (2, 2, 2, 40)), st.integers(0, 20), st.sampled_from([3, 16, 20, 96])
    ),
    kappa=st.sampled_from([1.0, 0.0, 0.5]),
    mode=st.sampled_from(["sample", "deterministic"]),
    hides=st.sampled_from(["nothing", "mask", "starts"]),
    sinks=st.booleans(),
    seed=st.integers(0, 2**62),
)
def shapes(shape, kappa, mode, hides, sinks, seed) -> None:
    batch, kv_heads, groups, queries, past, d = shape
    keys, heads = queries + past, kv_heads * groups
    draw = torch.Generator().manual_seed(seed % 997)
    mask = torch.rand(batch, heads, queries, keys, generator=draw) > 0.3 if hides == "mask" else None
    if mask is not None:
        mask = visible_keys(queries, keys, mask, mask.device)
    starts = torch.randint(0, keys + 1, (batch, queries), generator=draw) if hides == "starts" else None
    closed = torch.rand(heads, generator=draw) > 0.7
    spec = GateSpec(kappa, mode, d**-0.5, mask, sinks, seed, starts=starts, closed=closed)
    check(inputs(batch, kv_heads, groups, queries, keys, d, seed % 1000), spec)


if __name__ == "__main__":
    {"gates": gates, "visibility": visibility, "precision": precision, "shapes": shapes}[sys.argv[1]]()
