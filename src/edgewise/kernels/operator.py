"""`torch.ops.edgewise.gated_attention`: the gate as one operator, which autograd and `torch.compile` know.

Its outputs are y, expected edges, open edges and lse; gradients flow from the first two to q, k, v and b. The argument
`backend` names the implementation, an entry of `BACKENDS`; the compiler does not look into it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from edgewise.core.devices import upload
from edgewise.core.errors import EdgewiseError
from edgewise.kernels.backend import Backend, Forward, Inputs
from edgewise.kernels.blocks import blocked_backend, pairs_in_blocks
from edgewise.kernels.cpu import CPU_ROWS
from edgewise.kernels.cuda import cuda_backend
from edgewise.kernels.equations import AttentionOutput, GateSpec
from edgewise.kernels.flex import flex_backend
from edgewise.kernels.rows import TORCH_ROWS
from edgewise.kernels.triton_backend import triton_backend

_TORCH, _TRITON = blocked_backend(TORCH_ROWS), triton_backend()
BACKENDS: dict[str, Backend] = {
    "cpu": blocked_backend(CPU_ROWS),  # fused loops
    "torch": _TORCH,  # tensor operations, any device
    "triton": _TRITON,
    "cuda": cuda_backend(_TRITON, _TORCH),  # Triton where it is proven right, else tensor operations
    "flex": flex_backend(),  # torch's FlexAttention, inference only
}


def gated_attention_operator(
    q: Tensor, k: Tensor, v: Tensor, b: Tensor, spec: GateSpec, backend: str
) -> AttentionOutput:
    """Call the operator: the arguments of `equations.reference`, and the name of a backend."""
    seed = _seed(spec.seed, q.device) if spec.mode == "sample" else None
    constants = (spec.kappa, spec.scale, spec.sinks, spec.first_sequence, spec.counts, backend)
    operator = torch.ops.edgewise.gated_attention.default
    output = operator(q, k, v, b, spec.mask, spec.starts, spec.closed, seed, *constants)  # pyright: ignore
    return AttentionOutput(*output[:3])


def _seed(seed: int | Tensor, device: torch.device) -> Tensor:
    """On the device; a number is filled in there, because copying one would wait for it."""
    if isinstance(seed, Tensor):
        return upload(seed, device)
    return torch.full((), seed, dtype=torch.int64, device=device)


class _Call(NamedTuple):
    """Arguments of the operator after q, k, v and b, in the order of its schema."""

    mask: Tensor | None
    starts: Tensor | None
    closed: Tensor | None
    seed: Tensor | None  # None: deterministic
    kappa: float
    scale: float
    sinks: bool
    first_sequence: int
    counts: bool
    backend: str

    @property
    def spec(self) -> GateSpec:
        mode = "deterministic" if self.seed is None else "sample"
        return GateSpec(
            self.kappa,
            mode,
            self.scale,
            self.mask,
            self.sinks,
            0 if self.seed is None else self.seed,
            self.first_sequence,
            self.starts,
            self.closed,
            self.counts,
        )


_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor b"
_OUTPUTS = "Tensor y, Tensor expected_edges, Tensor open_edges, Tensor lse"
_CALL = (
    "Tensor? mask, Tensor? starts, Tensor? closed, Tensor? seed, "
    "float kappa, float scale, bool sinks, int first_sequence, bool counts, str backend"
)
_FORWARD, _BACKWARD = "edgewise::gated_attention", "edgewise::gated_attention_backward"
# `torch.library.custom_op` would import the compiler at the first call, which takes seconds
torch.library.define(_FORWARD, f"({_INPUTS}, {_CALL}) -> (Tensor, Tensor, Tensor, Tensor)")
torch.library.define(
    _BACKWARD,
    f"(Tensor dy, Tensor dedges, {_INPUTS}, {_OUTPUTS}, {_CALL}) -> (Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.impl(_FORWARD, "CompositeExplicitAutograd")
def _forward(q: Tensor, k: Tensor, v: Tensor, b: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    call = _Call(*arguments)
    with torch.autocast(q.device.type, enabled=False):
        return tuple(BACKENDS[call.backend].forward(Inputs(q, k, v, b), call.spec))


@torch.library.impl(_BACKWARD, "CompositeExplicitAutograd")
def _backward(dy: Tensor, dedges: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    inputs, saved, call = Inputs(*arguments[:4]), Forward(*arguments[4:8]), _Call(*arguments[8:])
    backward = BACKENDS[call.backend].backward
    if backward is None:
        raise EdgewiseError(
            f"the backend {call.backend!r} has no backward pass: use it under torch.no_grad()"
        )
    with torch.autocast(dy.device.type, enabled=False):
        return tuple(backward(inputs, call.spec, saved, dy, dedges))


@torch.library.register_fake(_FORWARD)
def _fake_forward(q: Tensor, k: Tensor, v: Tensor, b: Tensor, *_: Any) -> tuple[Tensor, ...]:
    batch, heads, queries = q.shape[:3]
    real = torch.float64 if q.dtype == torch.float64 else torch.float32
    expected_edges, open_edges = (q.new_empty((batch, heads), dtype=real) for _ in range(2))
    y = v.new_empty((batch, heads, queries, v.shape[-1]))
    return y, expected_edges, open_edges, q.new_empty((batch, heads, queries), dtype=real)


@torch.library.register_fake(_BACKWARD)
def _fake_backward(dy: Tensor, dedges: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in arguments[:4])


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(*inputs[:4], *output, *inputs[4:8])
    ctx.constants = inputs[8:]


def _differentiate(ctx: Any, dy: Tensor, dedges: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    backward = torch.ops.edgewise.gated_attention_backward.default
    gradients = backward(dy, dedges, *ctx.saved_tensors, *ctx.constants)
    return *gradients, *[None] * (4 + len(ctx.constants))


torch.library.register_autograd(_FORWARD, _differentiate, setup_context=_save)


@register_flop_formula(torch.ops.edgewise.gated_attention)
def _forward_flops(q: tuple, k: tuple, v: tuple, *_: Any, **__: Any) -> int:
    """S and y, for torch's FLOP counter, which sees shapes."""
    return 2 * (q[3] + v[3]) * q[0] * q[1] * pairs_in_blocks(q[2], k[2])


@register_flop_formula(torch.ops.edgewise.gated_attention_backward)
def _backward_flops(dy: tuple, dedges: tuple, q: tuple, k: tuple, v: tuple, *_: Any, **__: Any) -> int:
    """S, dK and dQ; dO V^T and dV."""
    return 2 * (3 * q[3] + 2 * v[3]) * q[0] * q[1] * pairs_in_blocks(q[2], k[2])
