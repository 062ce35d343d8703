"""Gated attention on CUDA devices: Triton where a check against the reference passes, else plain tensor operations."""

import warnings
from functools import cache

import torch
from torch import Tensor

from edgewise.kernels.backend import Backend, Forward, Gradients, Inputs
from edgewise.kernels.equations import GateSpec, full_precision, reference

TOLERANCE = 1e-3


def cuda_backend(triton: Backend, fallback: Backend) -> Backend:
    """`triton` on devices where it works, else `fallback`, which computes in single precision."""

    def forward(inputs: Inputs, spec: GateSpec) -> Forward:
        if triton_works(triton, inputs.q.device):
            return triton.forward(inputs, spec)
        result = fallback.forward(Inputs(*full_precision(*inputs)), spec)
        return result._replace(y=result.y.to(inputs.v.dtype))

    def backward(inputs: Inputs, spec: GateSpec, saved: Forward, dy: Tensor, dedges: Tensor) -> Gradients:
        chosen = triton if triton_works(triton, inputs.q.device) else fallback
        assert chosen.backward is not None
        if chosen is triton:
            return chosen.backward(inputs, spec, saved, dy, dedges)
        saved = saved._replace(y=saved.y.to(saved.lse.dtype))
        gradients = chosen.backward(
            Inputs(*full_precision(*inputs)), spec, saved, dy.to(saved.lse.dtype), dedges
        )
        return Gradients(*(x.to(original.dtype) for x, original in zip(gradients, inputs, strict=True)))

    return Backend(forward, backward, takes_half=True)


@cache
def triton_works(triton: Backend, device: torch.device) -> bool:
    """Whether Triton is installed and gives the reference's outputs and gradients on a device; warns if it does not."""
    try:
        difference = largest_difference(triton, device)
    except (
        Exception
    ) as error:  # no triton, no compiler, a device it does not know: the fallback works everywhere
        warnings.warn(
            f"edgewise: no Triton kernels on {device} ({error}); slower ones are used", stacklevel=2
        )
        return False
    if not difference < TOLERANCE:
        warnings.warn(
            f"edgewise: Triton kernels on {device} are off by {difference:.2g}; slower ones are used",
            stacklevel=2,
        )
        return False
    return True


def largest_difference(backend: Backend, device: torch.device) -> float:
    """Largest relative difference of y, edge counts and gradients from the reference, on a small input in float32."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 40, 32), (2, 2, 40, 32), (2, 2, 40, 32), (4,))
    inputs = Inputs(*(torch.randn(shape, generator=draw).to(device).requires_grad_() for shape in shapes))
    dy, dedges = (
        torch.randn(shapes[0], generator=draw).to(device),
        torch.randn(2, 4, generator=draw).to(device),
    )
    spec = GateSpec(1.0, "sample", 0.2, None, sinks=False, seed=1)
    assert backend.backward is not None
    with torch.no_grad():
        got = backend.forward(inputs, spec)
        gradients = backend.backward(inputs, spec, got, dy, dedges)
    with torch.enable_grad():
        expected = reference(*inputs, spec)
        loss = (expected.y * dy).sum() + (expected.expected_edges * dedges).sum()
        pairs = zip(gradients, torch.autograd.grad(loss, inputs), strict=True)
    pairs = [(got.y, expected.y), (got.expected_edges, expected.expected_edges), *pairs]
    return max(((a - e).norm() / e.norm()).item() for a, e in pairs)
