"""The equations: fast path against reference, gradients against finite differences, the sampler against its law."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
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
from edgewise.kernels import equations
from edgewise.kernels.equations import Gated, gated_attention, in_sight, noise, noise_keys, reference

KAPPAS = [kind.kappa for kind in GATES.values()]


@contextmanager
def small_blocks(queries: int, elements: int, fused: bool) -> Iterator[None]:
    """Cut even tiny inputs into several blocks; choose the row passes."""
    before = equations._QUERIES, equations._ELEMENTS, equations._row_passes
    equations._QUERIES, equations._ELEMENTS = queries, elements
    if not fused:
        equations._row_passes = lambda S: (equations.forward_rows, equations.backward_rows)
    try:
        yield
    finally:
        equations._QUERIES, equations._ELEMENTS, equations._row_passes = before


def inputs(batch, kv_heads, groups, queries, keys, d, seed=0, dtype=torch.float64) -> Any:
    draw = torch.Generator().manual_seed(seed)
    q = 2 * torch.randn(batch, kv_heads * groups, queries, d, generator=draw, dtype=dtype)
    k, v = (torch.randn(batch, kv_heads, keys, d, generator=draw, dtype=dtype) for _ in range(2))
    return q, k, v, torch.rand(kv_heads * groups, generator=draw, dtype=dtype) * 3


def with_gradients(attend, tensors, *args) -> tuple[Gated, tuple[Tensor, ...]]:
    """Outputs, and the gradients of a random function of y and of the expected edges."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = attend(*leaves, *args)
    draw = torch.Generator().manual_seed(5)
    loss = (out.y * torch.randn(out.y.shape, generator=draw, dtype=torch.float64)).sum()
    loss = loss + (out.edges * torch.randn(out.edges.shape, generator=draw, dtype=torch.float64)).sum()
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
    block=st.tuples(st.sampled_from([1, 5, 16, 128]), st.sampled_from([1, 500, 1 << 20])),
    fused=st.booleans(),
    sinks=st.booleans(),
    seed=st.integers(0, 2**62),
)
def test_fast_equals_reference_with_all_gradients(shape, kappa, mode, pads, block, fused, sinks, seed):
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
        mask = mask & in_sight(queries, queries + past, None, mask.device)
    arguments = (kappa, mode, d**-0.5, mask, seed)
    expected, expected_gradients = with_gradients(partial(reference, sinks=sinks), tensors, *arguments)
    with small_blocks(*block, fused):
        got, gradients = with_gradients(partial(gated_attention, sinks=sinks), tensors, *arguments)
    assert torch.equal(got.opened, expected.opened)
    for a, b in [
        (got.y, expected.y),
        (got.edges, expected.edges),
        *zip(gradients, expected_gradients, strict=True),
    ]:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("mode", ["sample", "deterministic"])
def test_single_precision_agrees_with_double(kappa, mode):
    tensors = inputs(2, 4, 1, 200, 200, 16)
    double, in_double = with_gradients(gated_attention, tensors, kappa, mode, 0.25, None, 3)
    single, in_single = with_gradients(
        gated_attention, [x.float() for x in tensors], kappa, mode, 0.25, None, 3
    )
    # a gate within rounding of its threshold may fall on the other side; there must be next to none
    assert (single.opened.double() - double.opened).abs().sum() <= 2
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
        expected, expected_gradients = with_gradients(
            reference, tensors, kappa, "deterministic", 1.0, None, 0
        )
        got, gradients = with_gradients(gated_attention, tensors, kappa, "deterministic", 1.0, None, 0)
        assert torch.equal(got.opened, expected.opened)
        for a, e in [(got.y, expected.y), *zip(gradients, expected_gradients, strict=True)]:
            assert torch.isfinite(a).all()
            torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-3)


def test_nan_comes_out_as_nan():
    q, k, v, b = inputs(1, 2, 1, 9, 9, 4, dtype=torch.float32)
    k[0, 1, 4, 0] = torch.nan
    out = gated_attention(q, k, v, b, 1.0, "deterministic", 0.5)
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
    seen = in_sight(6, 6, None, torch.device("cpu"))
    n = (
        noise(noise_keys(seed, 1, 2, 6, torch.device("cpu")), 6, torch.float64).logit()
        if mode == "sample"
        else 0.0
    )

    def parts(q, k, v, b):
        s = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
        z = s - kappa * s.logsumexp(-1, keepdim=True) + b.view(-1, 1, 1)
        return torch.softmax(s, -1), z, torch.sigmoid(z + n), v

    _, z0, g0, _ = parts(*tensors)
    M = (z0 + n > 0).double()

    def surrogate(*inputs: Any) -> float:
        p, z, g, v = parts(*inputs)
        y = ((M + g - g0) * p) @ v
        return ((y * R).sum() + (torch.sigmoid(z).sum((-2, -1)) * c).sum()).item()

    leaves = [x.clone().requires_grad_() for x in tensors]
    out = gated_attention(*leaves, kappa, mode, scale, None, seed)
    gradients = torch.autograd.grad((out.y * R).sum() + (out.edges * c).sum(), leaves)
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
        gated_attention(q, k, v, wide_open, 0.0, "deterministic", 8**-0.5),
        gated_attention(q, k, v, wide_open, 1.0, "sample", 8**-0.5, seed=1),
        gated_attention(q, k, v, wide_open, 0.0, "dense", 8**-0.5),
        reference(q, k, v, wide_open, 0.0, "dense", 8**-0.5),
    ):
        torch.testing.assert_close(out.y, expected, rtol=1e-10, atol=1e-10)
        assert (out.opened == 50 * 51 / 2).all() and torch.allclose(out.edges.double(), out.opened.double())


def test_all_gates_closed_gives_zero():
    q, k, v, _ = inputs(1, 2, 1, 20, 20, 4)
    out = gated_attention(q, k, v, torch.full((2,), -1e4, dtype=torch.float64), 1.0, "deterministic", 0.5)
    assert (out.y == 0).all() and (out.opened == 0).all() and (out.edges < 1e-12).all()


@pytest.mark.parametrize("pads", ["none", "left", "two texts"])
def test_without_sinks_no_edge_leads_to_a_texts_first_token(pads):
    """Everything else is as it was: the weight of a closed edge is missing, and no other grows for it."""
    first = {"none": [0] * 12, "left": [3] * 12, "two texts": [0] * 5 + [5] * 7}[pads]
    mask = torch.tensor([[start <= j <= i for j in range(12)] for i, start in enumerate(first)])[None, None]
    tensors = inputs(1, 2, 2, 12, 12, 4)
    every_gate_open = (*tensors[:3], tensors[3] + 50, 1.0, "deterministic", 0.5, mask)
    with_sinks, without = (reference(*every_gate_open, sinks=sinks).weights for sinks in (True, False))
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
    seen = in_sight(64, 64, None, q.device)[0].expand(2, -1, -1)
    s = (q @ k.mT)[0].masked_fill(~seen, -torch.inf)
    pi = torch.sigmoid(s - kappa * s.logsumexp(-1, keepdim=True) + b.view(-1, 1, 1))[seen]
    draws = [reference(q, k, v, b, kappa, "sample", 1.0, None, seed) for seed in range(300)]
    weights = torch.stack(
        [out.weights[0][seen] for out in draws if out.weights is not None]
    )  # [draws, pairs]
    opened = (weights > 0).double()
    usable = torch.softmax(s, -1)[seen] > 0
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
    device = torch.device("cpu")
    u = noise(noise_keys(12345, 2, 4, 256, device), 256, torch.float64)  # [batch, heads, queries, keys]
    other_seed = noise(noise_keys(12346, 2, 4, 256, device), 256, torch.float64)
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
    whole = gated_attention(*tensors, 1.0, "sample", 0.5, None, 7)
    with small_blocks(4, 100, fused=True):
        cut = gated_attention(*tensors, 1.0, "sample", 0.5, None, 7)
    assert torch.equal(whole.opened, cut.opened)
    torch.testing.assert_close(whole.y, cut.y, rtol=1e-12, atol=1e-12)
    assert not torch.equal(whole.y, gated_attention(*tensors, 1.0, "sample", 0.5, None, 8).y)


def test_nothing_of_size_queries_by_keys_is_kept_for_the_backward_pass():
    q, k, v, b = (x.requires_grad_() for x in inputs(1, 2, 1, 300, 300, 4))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        gated_attention(q, k, v, b, 1.0, "sample", 0.5, None, 1)
    assert kept and max(kept) <= 2 * 300 * 4


def test_noise_of_neighbouring_seeds_shares_no_row():
    """Not even shifted: sorted rows of one seed never meet those of the next."""
    rows = [noise_keys(seed, 2, 4, 512, torch.device("cpu")) for seed in range(6)]
    for which in range(2):
        keys = torch.cat([row[which].flatten() for row in rows])
        assert len(keys.unique()) > len(keys) - 5


def test_half_precision_inputs_are_computed_in_single():
    q, k, v, b = (x.to(torch.bfloat16) for x in inputs(1, 2, 1, 40, 40, 8))
    expected = gated_attention(q.float(), k.float(), v.float(), b.float(), 1.0, "deterministic", 0.3)
    out = gated_attention(q, k, v, b, 1.0, "deterministic", 0.3)
    assert out.y.dtype == torch.bfloat16 and torch.equal(out.opened, expected.opened)
    torch.testing.assert_close(out.y.float(), expected.y, rtol=1e-2, atol=1e-2)


def test_unknown_gate_and_senseless_offset_are_refused():
    with pytest.raises(EdgewiseError, match=r"unknown gate 'soft'; the gates are: score, relative"):
        GateConfig("soft")
    with pytest.raises(EdgewiseError, match="finite"):
        GateConfig("score", float("nan"))
