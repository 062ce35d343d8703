"""`torch.ops.edgewise.gated_attention`: registered correctly, differentiable, and no obstacle to `torch.compile`."""

from typing import Any

import pytest
import torch
from hosts import host, text
from test_gate import inputs, with_gradients
from torch import Tensor, nn

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gates_of
from edgewise.kernels.backend import Backend
from edgewise.kernels.cuda import TOLERANCE, largest_difference, triton_works
from edgewise.kernels.dispatch import gated_attention
from edgewise.kernels.equations import GateSpec, reference, visible_keys
from edgewise.kernels.operator import BACKENDS


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("sample", [False, True])
def test_operator_is_registered_correctly(backend, sample):
    tensors = [x.requires_grad_() for x in inputs(2, 2, 2, 7, 9, 4)]
    seed = torch.tensor(3) if sample else None
    mask = visible_keys(7, 9, torch.rand(2, 1, 7, 9) > 0.2, torch.device("cpu"))
    closed = torch.tensor([False, True, False, False])
    starts = torch.arange(7)[None]
    constants = (1.0, 0.5, not sample, 0, True, backend)
    operator: Any = torch.ops.edgewise.gated_attention.default
    torch.library.opcheck(operator, (*tensors, mask, starts, closed, seed, *constants))


def test_single_query_and_starts_equal_a_mask():
    """Packed documents by the first key of each query, as a mask of the same, in every backend."""
    tensors = inputs(2, 2, 2, 11, 11, 4)
    starts = torch.tensor([[0] * 5 + [5] * 6, [0, 0] + [2] * 6 + [8] * 3])
    mask = visible_keys(11, 11, None, starts.device, starts)
    for sinks in (True, False):
        spec = GateSpec(1.0, "sample", 0.5, None, sinks, seed=4)
        expected, expected_gradients = with_gradients(reference, tensors, spec._replace(mask=mask))
        for backend in ("reference", "cpu", "torch"):
            got, gradients = with_gradients(
                lambda *x, name=backend: gated_attention(*x, backend=name),
                tensors,
                spec._replace(starts=starts),
            )
            for a, e in [(got.y, expected.y), *zip(gradients, expected_gradients, strict=True)]:
                torch.testing.assert_close(a, e, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("hides", ["nothing", "mask", "starts"])
@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_one_query_equals_the_reference(kappa, hides):
    """As in generation: forward, edge counts and gradients; grouped queries, a closed head, a padded query."""
    tensors = inputs(2, 2, 2, 1, 13, 4)
    tensors[3].add_(1.0)
    mask = starts = None
    if hides == "mask":
        mask = visible_keys(1, 13, torch.rand(2, 4, 1, 13) > 0.4, torch.device("cpu"))
        mask[0, 0] = False
    if hides == "starts":
        starts = torch.tensor([[5], [13]])
    closed = torch.tensor([False, False, True, False])
    for sinks in (True, False):
        spec = GateSpec(kappa, "deterministic", 0.5, mask, sinks, starts=starts, closed=closed)
        expected, expected_gradients = with_gradients(reference, tensors, spec)
        got, gradients = with_gradients(lambda *x: gated_attention(*x, backend="cpu"), tensors, spec)
        assert torch.equal(got.open_edges, expected.open_edges) and expected.open_edges.sum() > 3
        pairs = [(got.y, expected.y), (got.expected_edges, expected.expected_edges)]
        for a, e in [*pairs, *zip(gradients, expected_gradients, strict=True)]:
            torch.testing.assert_close(a, e, rtol=1e-9, atol=1e-9)
        uncounted = gated_attention(*tensors, spec._replace(counts=False), backend="cpu")
        assert torch.equal(uncounted.y, got.y) and uncounted.open_edges.isnan().all()


def test_unknown_backend_is_refused():
    with pytest.raises(EdgewiseError, match="unknown `backend` 'metal'; the backends are: reference, cpu"):
        gated_attention(*inputs(1, 1, 1, 2, 2, 4), GateSpec(1.0, "deterministic", 1.0), backend="metal")


def test_devices_without_working_triton_fall_back():
    """Triton cannot run on CPU tensors, which here stand for a device that it fails on; half precision included."""
    q, k, v, b = inputs(1, 2, 2, 9, 9, 8)
    spec = GateSpec(1.0, "sample", 0.3, seed=2)
    triton_works.cache_clear()
    with pytest.warns(UserWarning, match="no Triton kernels on cpu .* slower ones are used"):
        triton_works(BACKENDS["triton"], q.device)
    expected, expected_gradients = with_gradients(reference, (q, k, v, b), spec)
    got, gradients = with_gradients(lambda *x: gated_attention(*x, backend="cuda"), (q, k, v, b), spec)
    for a, e in [(got.y, expected.y), *zip(gradients, expected_gradients, strict=True)]:
        torch.testing.assert_close(a, e)
    half = [x.half() for x in (q, k, v)]
    y = gated_attention(*half, b.float(), spec, backend="cuda").y
    assert y.dtype == torch.float16
    torch.testing.assert_close(
        y.double(), reference(*(x.double() for x in half), b, spec).y, rtol=1e-2, atol=1e-2
    )


def test_a_wrong_backend_is_noticed():
    good = BACKENDS["torch"]

    def wrong(*arguments: Any):
        assert good.backward is not None
        gradients = good.backward(*arguments)
        return gradients._replace(db=gradients.db * 1.01)

    assert largest_difference(good, torch.device("cpu")) < 1e-5
    assert largest_difference(Backend(good.forward, wrong), torch.device("cpu")) > TOLERANCE


def training_step(model: nn.Module, twin: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """Loss, and gradients of a step with the sparsity penalty and a given seed."""
    twin.zero_grad()
    for layer, gate in enumerate(gates_of(twin)):
        gate.noise = (torch.tensor(7 + layer), 0)
    with edgewise.mode(twin, "sample"), edgewise.tap(twin) as activations:
        logits = model(ids).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss = loss + activations.expected_density.mean()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in twin.named_parameters() if p.grad is not None}
    return {"loss": loss.detach()} | gradients


def check_compiled(kind: str, backend: str) -> None:
    twin = edgewise.gate(host(kind), edgewise.GateConfig(null_value=True))
    for module in twin.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    gates_of(twin)[0].b.data[0] = -1.0  # closed at inference
    compiled = torch.compile(twin, fullgraph=True, backend=backend)
    ids = text(2, 10)
    padding = torch.ones_like(ids)
    padding[0, :3] = 0
    twin.eval()
    with torch.no_grad():
        for mask in (None, padding):
            expected = twin(ids, attention_mask=mask).logits
            torch.testing.assert_close(compiled(ids, attention_mask=mask).logits, expected)
    twin.train()
    expected = training_step(twin, twin, ids)
    got = training_step(compiled, twin, ids)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_twin_compiles_as_one_graph():
    check_compiled("gpt2", "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_twin_compiles_by_inductor(kind):
    check_compiled(kind, "inductor")
