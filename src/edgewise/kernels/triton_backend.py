"""Launch the kernels of `triton_kernels.py`: tile sizes, strides and buffers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgewise.kernels.backend import Backend, Forward, Gradients, Inputs, sink_keys
from edgewise.kernels.equations import GateSpec


class Tiles(NamedTuple):
    """Launch configuration of one kernel."""

    queries: int
    keys: int
    warps: int
    stages: int


class LaunchPlan(NamedTuple):
    """Launch configurations of the three kernels."""

    forward: Tiles
    query_gradients: Tiles
    key_gradients: Tiles

    def for_mask(self) -> "LaunchPlan":
        """Smaller tiles, where a mask is read: it takes registers, too."""
        return LaunchPlan(*(x._replace(queries=min(32, x.queries), keys=min(32, x.keys)) for x in self))


def block_width(width: int) -> int:
    """Columns of a tile that holds heads of this width: a power of 2, at least 16, as tensor cores want."""
    return max(16, 1 << (width - 1).bit_length())


def launch_plan(width: int, dtype: torch.dtype) -> LaunchPlan:
    """Tile sizes by the width of a head; `benchmarks/triton_kernels.py` shows what each costs."""
    return (FULL if dtype.itemsize >= 4 else HALF)[block_width(width)]


HALF = {
    16: LaunchPlan(Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 64, 4, 2)),
    32: LaunchPlan(Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 64, 4, 2)),
    64: LaunchPlan(Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 64, 4, 2)),
    128: LaunchPlan(Tiles(64, 32, 8, 2), Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 1)),
    256: LaunchPlan(Tiles(64, 32, 8, 2), Tiles(16, 32, 4, 1), Tiles(32, 32, 8, 1)),
}
FULL = {
    16: LaunchPlan(Tiles(32, 32, 4, 1), Tiles(32, 16, 4, 1), Tiles(16, 32, 4, 1)),
    32: LaunchPlan(Tiles(32, 32, 4, 1), Tiles(32, 16, 4, 1), Tiles(16, 32, 4, 1)),
    64: LaunchPlan(Tiles(32, 32, 4, 1), Tiles(16, 32, 4, 1), Tiles(16, 32, 4, 1)),
    128: LaunchPlan(Tiles(16, 16, 4, 1), Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1)),
    256: LaunchPlan(Tiles(16, 32, 8, 1), Tiles(16, 32, 8, 1), Tiles(16, 16, 8, 1)),
}


def triton_backend(plan: Callable[[int, torch.dtype], LaunchPlan] = launch_plan) -> Backend:
    """Gated attention by Triton, in float32, bfloat16 or float16 with float32 sums; triton is imported when it runs."""

    def tiles(inputs: Inputs, spec: GateSpec) -> LaunchPlan:
        chosen = plan(_width(inputs), inputs.q.dtype)
        return chosen if spec.mask is None else chosen.for_mask()

    def forward(inputs: Inputs, spec: GateSpec) -> Forward:
        return _forward(_rows_contiguous(inputs), spec, tiles(inputs, spec).forward)

    def backward(inputs: Inputs, spec: GateSpec, saved: Forward, dy: Tensor, dedges: Tensor) -> Gradients:
        chosen = tiles(inputs, spec)
        return _backward(
            _rows_contiguous(inputs), spec, saved, _contiguous_rows(dy), dedges.contiguous(), chosen
        )

    return Backend(forward, backward, takes_half=True)


def _width(inputs: Inputs) -> int:
    return max(inputs.q.shape[-1], inputs.v.shape[-1])


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _rows_contiguous(inputs: Inputs) -> Inputs:
    return Inputs(*map(_contiguous_rows, inputs))


def _sums_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def constants(inputs: Inputs, spec: GateSpec) -> dict[str, Any]:
    """Arguments that the kernels are compiled for, apart from tiles."""
    import triton.language as tl  # optional: only this backend needs it

    q, k, v, _ = inputs
    return {
        "GROUPS": q.shape[1] // k.shape[1],
        "D": q.shape[-1],
        "D_V": v.shape[-1],
        "SCALE": float(spec.scale),
        "KAPPA": float(spec.kappa),
        "SINKS": spec.sinks,
        "SAMPLE": spec.mode == "sample",
        "REAL": tl.float64 if q.dtype == torch.float64 else tl.float32,
        # three products of tensor cores for one in float32: a threshold on scores of 10 bits would be coarse
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "ieee",
        "BLOCK_D": block_width(q.shape[-1]),
        "BLOCK_DV": block_width(v.shape[-1]),
    }


def launch(tiles: Tiles) -> dict[str, int]:
    return {
        "BLOCK_M": tiles.queries,
        "BLOCK_N": tiles.keys,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


class _Visibility(NamedTuple):
    """What tells the kernels which edges exist, and strides of its batch and head dimension."""

    starts: Tensor | None  # int32, [1 or batch, queries]
    sinks: Tensor | None  # int32, [1 or batch, 1 or heads, queries]: the key of a sink edge, or -1
    mask: Tensor | None  # uint8, [1 or batch, 1 or heads, queries, keys]
    closed: Tensor | None  # uint8, [heads]

    @property
    def strides(self) -> list[int]:
        strides = [_stride(self.starts, 0)]
        for x in (self.sinks, self.mask):
            strides += [_stride(x, 0), _stride(x, 1)]
        return strides


def _stride(x: Tensor | None, dim: int) -> int:
    return 0 if x is None or x.shape[dim] == 1 else x.stride(dim)


def _visibility(inputs: Inputs, spec: GateSpec) -> _Visibility:
    starts = None if spec.starts is None else spec.starts.int().contiguous()
    mask = None if spec.mask is None else spec.mask.contiguous().view(torch.uint8)
    closed = None if spec.closed is None else spec.closed.contiguous().view(torch.uint8)
    sinks = None if spec.sinks else sink_keys(inputs, spec)
    return _Visibility(starts, sinks, mask, closed)


def _ends(spec: GateSpec, queries: int, keys: int, tile: int) -> Tensor | None:
    """One after the last query that sees a tile of keys, int32 [1 or batch, tiles]."""
    if spec.starts is None:
        return None
    least = spec.starts.flip(-1).cummin(-1).values.flip(-1).contiguous()  # over this query and all later ones
    last_keys = torch.arange(tile, keys + tile, tile, device=least.device).expand(len(least), -1)
    return torch.searchsorted(least, last_keys.to(least.dtype).contiguous()).int()


def _strides(*tensors: Tensor) -> list[int]:
    """Of batch, heads and rows."""
    return [x.stride(dim) for x in tensors for dim in range(3)]


def _seed(spec: GateSpec, device: torch.device) -> Tensor | None:
    return torch.as_tensor(spec.seed, device=device) if spec.mode == "sample" else None


def _forward(inputs: Inputs, spec: GateSpec, tiles: Tiles) -> Forward:
    from edgewise.kernels.triton_kernels import forward_kernel  # imports triton, which is optional

    q, k, v, b = inputs
    batch, heads, queries, _ = q.shape
    y = v.new_empty(batch, heads, queries, v.shape[-1])
    lse, expected, opened = q.new_empty(3, batch, heads, queries, dtype=_sums_dtype(q.dtype)).unbind()
    visibility = _visibility(inputs, spec)
    grid = (-(-queries // tiles.queries), batch * heads)
    forward_kernel[grid](  # pyright: ignore
        *(q, k, v, b, y, lse, expected, opened, *visibility, _seed(spec, q.device)),
        *(*_strides(q, k, v), *visibility.strides),
        *(heads, queries, k.shape[2], spec.first_sequence),
        **constants(inputs, spec),
        **launch(tiles),
    )
    return Forward(y, expected.sum(-1), opened.sum(-1), lse.clone())


def _backward(
    inputs: Inputs, spec: GateSpec, saved: Forward, dy: Tensor, dedges: Tensor, plan: LaunchPlan
) -> Gradients:
    from edgewise.kernels.triton_kernels import key_gradients_kernel, query_gradients_kernel

    q, k, v, b = inputs
    (batch, heads, queries, _), (kv_heads, keys) = q.shape, k.shape[1:3]
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    rows_D, sums_dz = torch.empty_like(saved.lse), torch.empty_like(saved.lse)
    visibility, seed = _visibility(inputs, spec), _seed(spec, q.device)
    fixed, strides = constants(inputs, spec), _strides(q, k, v, dy)
    sizes = (heads, queries, keys, spec.first_sequence)
    query_gradients_kernel[(-(-queries // plan.query_gradients.queries), batch * heads)](  # pyright: ignore
        *(q, k, v, b, saved.y, saved.lse, dy, dedges, dq, rows_D, sums_dz, *visibility, seed),
        *(*strides, *visibility.strides, *sizes),
        **fixed,
        **launch(plan.query_gradients),
    )
    tiles = plan.key_gradients
    ends = _ends(spec, queries, keys, tiles.keys)
    key_gradients_kernel[(-(-keys // tiles.keys), batch * kv_heads)](  # pyright: ignore
        *(q, k, v, b, saved.lse, dy, dedges, rows_D, sums_dz, dk, dv, ends, *visibility, seed),
        *(*strides, _stride(ends, 0), *visibility.strides, *sizes),
        **fixed,
        **launch(tiles),
    )
    return Gradients(dq, dk, dv, sums_dz.sum((0, 2)).to(b.dtype))
