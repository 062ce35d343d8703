"""The equations: fast path against reference, gradients against finite differences, the sampler against its law."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from edgewise.core.errors import EdgewiseError
from edgewise.gating.config import GATES, GateConfig
from edgewise.kernels.blocks import BlockSize, blocked_backend
from edgewise.kernels.cpu import CPU_ROWS
from edgewise.kernels.dispatch import gated_attention
from edgewise.kernels.equations import AttentionOutput, GateSpec, reference, visible_keys
from edgewise.kernels.noise import noise_keys, uniform_noise
from edgewise.kernels.operator import BACKENDS
from edgewise.kernels.rows import TORCH_ROWS, RowPasses

KAPPAS = [kind.kappa for kind in GATES.values()]
CPU = torch.device("cpu")


def in_blocks(size: BlockSize, row_passes: RowPasses = CPU_ROWS):
    """Gated attention by a backend that cuts even tiny inputs into several blocks."""
    name = f"{'cpu' if row_passes is CPU_ROWS else 'torch'} in blocks of {size}"
    BACKENDS[name] = blocked_backend(row_passes, size)
    return partial(gated_attention, backend=name)


def inputs(batch, kv_heads, groups, queries, keys, d, seed=0, dtype=torch.float64) -> Any:
    draw = torch.Generator().manual_seed(seed)
    q = 2 * torch.randn(batch, kv_heads * groups, queries, d, generator=draw, dtype=dtype)
    k, v = (torch.randn(batch, kv_heads, keys, d, generator=draw, dtype=dtype) for _ in range(2))
    return q, k, v, torch.rand(kv_heads * groups, generator=draw, dtype=dtype) * 3


def with_gradients(attend, tensors, spec: GateSpec) -> tuple[AttentionOutput, tuple[Tensor, ...]]:
    """Outputs, and the gradients of a random function of y and of the expected edges."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = attend(*leaves, spec)
    draw = torch.Generator().manual_seed(5)
    loss = (out.y * torch.randn(out.y.shape, generator=draw, dtype=torch.float64)).sum()
    edges = out.expected_edges
    loss = loss + (edges * torch.randn(edges.shape, generator=draw, dtype=torch.float64)).sum()
    return out, torch.autograd.grad(loss, leaves)


shapes = st.tuples(
    st.integers(1, 3),  # batch
    st.integers(1, 3),  # key/value heads
    st.integers(1, 3),  # query heads to each
    st.integers(1, 41),  # queries
    st.integers(0, 19),  # keys before the first query
    st.integers(1, 9),  # head width
)


@settings(max_examples=80, deadline=None)
@given(
    shape=shapes,
    kappa=st.sampled_from([*KAPPAS, 0.5]),
    mode=st.sampled_from(["sample", "deterministic"]),
    pads=st.sampled_from([None, "left", "right", "per head"]),
    size=st.builds(
        BlockSize,
        st.sampled_from([1, 5, 16, 128]),
        st.sampled_from([1, 500, 1 << 20]),
        st.sampled_from([0, 256]),
    ),
    row_passes=st.sampled_from([CPU_ROWS, TORCH_ROWS]),
    sinks=st.booleans(),
    seed=st.integers(0, 2**62),
)
def test_fast_equals_reference_with_all_gradients(shape, kappa, mode, pads, size, row_passes, sinks, seed):
    batch, kv_heads, groups, queries, past, d = shape
    tensors = inputs(batch, kv_heads, groups, queries, queries + past, d, seed % 1000)
    mask = None
    if pads is not None:
        draw = torch.Generator().manual_seed(seed % 997)
        heads = kv_heads * groups if pads == "per head" else 1
        mask = torch.ones(batch, heads, queries, queries + past, dtype=torch.bool)
        if pads == "per head":
            mask &= torch.rand(mask.shape, generator=draw) > 0.3
        else:
            hidden = torch.randint(0, queries + past + 1, (batch,), generator=draw)
            column = torch.arange(queries + past)
            keep = (
                column >= hidden[:, None] if pads == "left" else column < (queries + past - hidden)[:, None]
            )
            mask &= keep[:, None, None]
        mask = visible_keys(queries, queries + past, mask, mask.device)
    spec = GateSpec(kappa, mode, d**-0.5, mask, sinks, seed)
    expected, expected_gradients = with_gradients(reference, tensors, spec)
    got, gradients = with_gradients(in_blocks(size, row_passes), tensors, spec)
    assert torch.equal(got.open_edges, expected.open_edges)
    for a, b in [
        (got.y, expected.y),
        (got.expected_edges, expected.expected_edges),
        *zip(gradients, expected_gradients, strict=True),
    ]:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("mode", ["sample", "deterministic"])
def test_single_precision_agrees_with_double(kappa, mode):
    tensors = inputs(2, 4, 1, 200, 200, 16)
    spec = GateSpec(kappa, mode, 0.25, seed=3)
    double, in_double = with_gradients(gated_attention, tensors, spec)
    single, in_single = with_gradients(gated_attention, [x.float() for x in tensors], spec)
    # a gate within rounding of its threshold may fall on the other side; there must be next to none
    assert (single.open_edges.double() - double.open_edges).abs().sum() <= 2
    torch.testing.assert_close(
        single.y.double(), double.y, rtol=1e-3, atol=2e-2 if mode == "sample" else 1e-5
    )
    for a, b in zip(in_single, in_double, strict=True):
        assert (a.double() - b).norm() < 1e-3 * b.norm()


@pytest.mark.parametrize("kappa", KAPPAS)
def test_scores_too_large_for_exp_stay_exact(kappa):
    """lse beyond 88: exp(lse) overflows in single precision, P underflows, and gates near z = 0 still must be right."""
    q, k, v, b = inputs(1, 1, 1, 30, 30, 4)
    q = q * 200
    for dtype in (torch.float64, torch.float32):
        tensors = [x.to(dtype) for x in (q, k, v, b)]
        spec = GateSpec(kappa, "deterministic", 1.0)
        expected, expected_gradients = with_gradients(reference, tensors, spec)
        got, gradients = with_gradients(gated_attention, tensors, spec)
        assert torch.equal(got.open_edges, expected.open_edges)
        for a, e in [(got.y, expected.y), *zip(gradients, expected_gradients, strict=True)]:
            assert torch.isfinite(a).all()
            torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-3)


def test_nan_comes_out_as_nan():
    q, k, v, b = inputs(1, 2, 1, 9, 9, 4, dtype=torch.float32)
    k[0, 1, 4, 0] = torch.nan
    out = gated_attention(q, k, v, b, GateSpec(1.0, "deterministic", 0.5))
    assert torch.isfinite(out.y[0, 0]).all() and torch.isfinite(out.y[0, 1, :4]).all()
    assert out.y[0, 1, 4:].isnan().all()


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("mode", ["sample", "deterministic"])
def test_gradients_match_finite_differences_of_the_surrogate(kappa, mode):
    """The straight-through estimator is the true gradient of: M held fixed, plus sigmoid(z + n) minus its present value."""
    tensors = inputs(1, 1, 2, 6, 6, 3)
    scale, seed, draw = 0.7, 11, torch.Generator().manual_seed(2)
    R, c = (
        torch.randn(1, 2, 6, 3, generator=draw, dtype=torch.float64),
        torch.randn(1, 2, generator=draw, dtype=torch.float64),
    )
    visible = visible_keys(6, 6, None, CPU)
    u = uniform_noise(noise_keys(seed, (1, 2, 6), CPU), 6, torch.float64)
    n = u.logit() if mode == "sample" else 0.0

    def equations(q, k, v, b):
        s = (q @ k.mT * scale).masked_fill(~visible, -torch.inf)
        z = s - kappa * s.logsumexp(-1, keepdim=True) + b.view(-1, 1, 1)
        return torch.softmax(s, -1), z, torch.sigmoid(z + n), v

    _, z0, g0, _ = equations(*tensors)
    M = (z0 + n > 0).double()

    def surrogate(*inputs: Any) -> float:
        p, z, g, v = equations(*inputs)
        y = ((M + g - g0) * p) @ v
        return ((y * R).sum() + (torch.sigmoid(z).sum((-2, -1)) * c).sum()).item()

    leaves = [x.clone().requires_grad_() for x in tensors]
    out = gated_attention(*leaves, GateSpec(kappa, mode, scale, seed=seed))
    gradients = torch.autograd.grad((out.y * R).sum() + (out.expected_edges * c).sum(), leaves)
    for which, gradient in enumerate(gradients):
        for index in range(gradient.numel()):
            sides = []
            for step in (1e-5, -1e-5):
                moved = [x.clone() for x in tensors]
                moved[which].view(-1)[index] += step
                sides.append(surrogate(*moved))
            assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(
                gradient.flatten()[index].item(), rel=1e-6, abs=1e-8
            )


def test_all_gates_open_is_dense_attention():
    q, k, v, _ = inputs(2, 3, 2, 50, 50, 8)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    wide_open = torch.full((6,), 1e4, dtype=torch.float64)
    for out in (
        gated_attention(q, k, v, wide_open, GateSpec(0.0, "deterministic", 8**-0.5)),
        gated_attention(q, k, v, wide_open, GateSpec(1.0, "sample", 8**-0.5, seed=1)),
        gated_attention(q, k, v, wide_open, GateSpec(0.0, "dense", 8**-0.5)),
        reference(q, k, v, wide_open, GateSpec(0.0, "dense", 8**-0.5)),
    ):
        torch.testing.assert_close(out.y, expected, rtol=1e-10, atol=1e-10)
        assert (out.open_edges == 50 * 51 / 2).all()
        assert torch.allclose(out.expected_edges.double(), out.open_edges.double())


def test_all_gates_closed_gives_zero():
    q, k, v, _ = inputs(1, 2, 1, 20, 20, 4)
    b = torch.full((2,), -1e4, dtype=torch.float64)
    out = gated_attention(q, k, v, b, GateSpec(1.0, "deterministic", 0.5))
    assert (out.y == 0).all() and (out.open_edges == 0).all() and (out.expected_edges < 1e-12).all()


@pytest.mark.parametrize("pads", ["none", "left", "two texts"])
def test_without_sinks_no_edge_leads_to_a_texts_first_token(pads):
    """Other weights are unchanged: closing an edge does not renormalise."""
    first = {"none": [0] * 12, "left": [3] * 12, "two texts": [0] * 5 + [5] * 7}[pads]
    mask = torch.tensor([[start <= j <= i for j in range(12)] for i, start in enumerate(first)])[None, None]
    q, k, v, b = inputs(1, 2, 2, 12, 12, 4)
    with_sinks, without = (
        reference(
            q, k, v, b + 50, GateSpec(1.0, "deterministic", 0.5, mask, sinks)
        ).weights  # every gate open
        for sinks in (True, False)
    )
    assert with_sinks is not None and without is not None
    for i, start in enumerate(first):
        closed = [start] if i > start else []
        assert (without[0, :, i, closed] == 0).all()
        others = [j for j in range(12) if j not in closed]
        assert torch.equal(without[0, :, i, others], with_sinks[0, :, i, others])
    assert (without[0, :, range(max(first), 12), range(max(first), 12)] > 0).all()  # each still sees itself


@pytest.mark.parametrize("kappa", KAPPAS)
def test_sampled_gates_follow_their_law(kappa):
    """Open with frequency sigmoid(z), in every range of z: 20 bins at 5.7 standard errors, false alarm < 3e-7."""
    q, k, v, b = inputs(1, 2, 1, 64, 64, 8)
    q = q * 2
    visible = visible_keys(64, 64, None, CPU)[0].expand(2, -1, -1)
    s = (q @ k.mT)[0].masked_fill(~visible, -torch.inf)
    pi = torch.sigmoid(s - kappa * s.logsumexp(-1, keepdim=True) + b.view(-1, 1, 1))[visible]
    draws = [reference(q, k, v, b, GateSpec(kappa, "sample", 1.0, seed=seed)) for seed in range(300)]
    weights = [out.weights[0][visible] for out in draws if out.weights is not None]
    opened = (torch.stack(weights) > 0).double()  # [draws, pairs]
    usable = torch.softmax(s, -1)[visible] > 0
    bins = 0
    for low in torch.arange(0, 1, 0.05):
        inside = (pi >= low) & (pi < low + 0.05) & usable
        if inside.sum() < 3:
            continue
        bins += 1
        surplus = (opened[:, inside] - pi[inside]).sum()
        error = math.sqrt(len(draws) * (pi[inside] * (1 - pi[inside])).sum().item())
        assert abs(surplus) < 5.7 * error + 1e-6
    assert bins >= 15


def test_noise_is_uniform_and_independent():
    """Mean, spread, correlation with neighbours in every direction, within 5.5 standard errors: false alarm < 1e-6."""
    u, other_seed = (  # [batch, heads, queries, keys]
        uniform_noise(noise_keys(seed, (2, 4, 256), CPU), 256, torch.float64) for seed in (12345, 12346)
    )
    assert u.min() > 0 and u.max() < 1
    x = (u - 0.5) * math.sqrt(12)
    count = x.numel()
    assert abs(x.mean()) < 5.5 / math.sqrt(count)
    assert abs((x**2).mean() - 1) < 5.5 * math.sqrt(0.8 / count)
    y = (other_seed - 0.5) * math.sqrt(12)
    pairs = [
        (x[..., 1:], x[..., :-1]),
        (x[..., 1:, :], x[..., :-1, :]),
        (x[:, 1:], x[:, :-1]),
        (x[1], x[0]),
        (x, y),
    ]
    for a, b in pairs:
        assert abs((a * b).mean()) < 5.5 / math.sqrt(a.numel())
    corners = (
        x[..., 1:, 1:] * x[..., 1:, :-1] * x[..., :-1, 1:] * x[..., :-1, :-1]
    )  # no structure over rectangles either
    assert abs(corners.mean()) < 5.5 / math.sqrt(corners.numel())


def test_sampling_is_reproducible_and_does_not_depend_on_blocks():
    tensors = inputs(2, 2, 2, 37, 37, 4)
    spec = GateSpec(1.0, "sample", 0.5, seed=7)
    one_block = gated_attention(*tensors, spec)
    many_blocks = in_blocks(BlockSize(4, 100))(*tensors, spec)
    assert torch.equal(one_block.open_edges, many_blocks.open_edges)
    torch.testing.assert_close(one_block.y, many_blocks.y, rtol=1e-12, atol=1e-12)
    assert not torch.equal(one_block.y, gated_attention(*tensors, spec._replace(seed=8)).y)


def test_nothing_of_size_queries_by_keys_is_kept_for_the_backward_pass():
    q, k, v, b = (x.requires_grad_() for x in inputs(1, 2, 1, 300, 300, 4))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        gated_attention(q, k, v, b, GateSpec(1.0, "sample", 0.5, seed=1))
    assert kept and max(kept) <= 2 * 300 * 4


def test_noise_of_neighbouring_seeds_shares_no_row():
    """Not even shifted: sorted rows of one seed never meet those of the next."""
    noise = torch.stack([noise_keys(seed, (2, 4, 512), CPU) for seed in range(6)])
    for which in range(2):
        keys = noise[:, which].flatten()
        assert len(keys.unique()) > len(keys) - 5


def test_half_precision_inputs_are_computed_in_single():
    q, k, v, b = (x.to(torch.bfloat16) for x in inputs(1, 2, 1, 40, 40, 8))
    spec = GateSpec(1.0, "deterministic", 0.3)
    expected = gated_attention(q.float(), k.float(), v.float(), b.float(), spec)
    out = gated_attention(q, k, v, b, spec)
    assert out.y.dtype == torch.bfloat16 and torch.equal(out.open_edges, expected.open_edges)
    torch.testing.assert_close(out.y.float(), expected.y, rtol=1e-2, atol=1e-2)


def test_unknown_gate_and_infinite_offset_are_refused():
    with pytest.raises(EdgewiseError, match=r"unknown gate 'soft'; the gates are: score, relative"):
        GateConfig("soft")
    with pytest.raises(EdgewiseError, match="finite"):
        GateConfig("score", float("nan"))
