"""Heads that cannot open: every backend skips them, and what it skips is exactly zero."""

from typing import Any

import pytest
import torch
from hosts import host
from runs import BeforeStep, save_llama_and_text, settings
from test_gate import inputs, with_gradients

import edgewise
from edgewise.gating.edge_gate import gates_of
from edgewise.kernels.dispatch import gated_attention
from edgewise.kernels.equations import GateSpec, reference

CLOSED = {
    "whole groups": [True, True, False, False],
    "uneven groups": [True, False, False, False],
    "one each": [False, True, True, False],
    "all": [True] * 4,
    "none": [False] * 4,
}


@pytest.mark.parametrize("mode", ["sample", "deterministic"])
@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("closed", CLOSED.values(), ids=CLOSED)
def test_closed_heads_give_zero_and_leave_the_others_as_they_were(closed, backend, mode):
    tensors = inputs(2, 2, 2, 13, 17, 5)
    draw = torch.Generator().manual_seed(1)
    mask = torch.rand(2, 4, 13, 17, generator=draw) > 0.2
    closed = torch.tensor(closed)
    spec = GateSpec(1.0, mode, 0.5, mask, sinks=False, seed=3, closed=closed)

    def attend(*args: Any):
        return gated_attention(*args, backend=backend)

    expected, expected_gradients = with_gradients(reference, tensors, spec)
    got, gradients = with_gradients(attend, tensors, spec)
    assert torch.equal(got.open_edges, expected.open_edges)
    for a, e in [(got.y, expected.y), *zip(gradients, expected_gradients, strict=True)]:
        torch.testing.assert_close(a, e, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got.expected_edges, expected.expected_edges)
    dq, dk, _, db = gradients
    for zero in (got.y[:, closed], got.expected_edges[:, closed], dq[:, closed], db[closed]):
        assert (zero == 0).all()
    if closed[:2].all():
        assert (dk[:, 0] == 0).all()
    open_, open_gradients = with_gradients(attend, tensors, spec._replace(closed=None))
    # noise does not depend on which heads are closed; matrix products of other sizes may round otherwise
    for a, e in ((got.y, open_.y), (dq, open_gradients[0])):
        torch.testing.assert_close(a[:, ~closed], e[:, ~closed], rtol=1e-12, atol=1e-14)


def twin_with_closed_heads(kind="gpt2", **gate: Any) -> Any:
    twin = edgewise.gate(host(kind), edgewise.GateConfig(**gate)).eval()
    for edge_gate in gates_of(twin):
        edge_gate.b.data[0] = 0.0
        edge_gate.b.data[1] = -2.0
    return twin


IDS = torch.arange(24).view(2, 12) % 50


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_inference_skips_them_and_is_exact(kind):
    twin = twin_with_closed_heads(kind, null_value=True)
    gates: Any = gates_of(twin)
    for gate in gates:
        torch.nn.init.normal_(gate.null_value)
    with torch.no_grad():
        with edgewise.tap(twin, read=["outputs"]) as skipped:
            logits = twin(IDS).logits
        assert all(torch.equal(gate.closed_heads()[:2], torch.ones(2).bool()) for gate in gates)
        for gate in gates:
            gate.closed_heads = lambda: None
        with edgewise.tap(twin, read=["outputs"]) as computed:
            expected = twin(IDS).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    assert torch.equal(skipped.density_per_head, computed.density_per_head)
    assert (skipped.density_per_head[:, :2] == 0).all()
    for layer, y in skipped.last["outputs"].items():
        null_value = gates[layer].null_value[0]
        assert torch.equal(y[:, 0], null_value.expand_as(y[:, 0]))


def test_score_gates_cannot_be_proven_closed():
    twin = edgewise.gate(host("gpt2"), edgewise.GateConfig("score", b=-3.0)).eval()
    assert all(gate.closed_heads() is None for gate in gates_of(twin))


def test_training_skips_only_frozen_heads():
    """Noise may open a head with b < 0, and its gradient is how it comes back; a frozen head gets none."""
    twin = twin_with_closed_heads().train()
    gates: Any = gates_of(twin)
    gates[0].frozen_heads = torch.tensor([False, True] + [False] * (gates[0].heads - 2))
    with edgewise.mode(twin, "sample"), edgewise.tap(twin) as activations:
        loss = twin(IDS).logits.square().mean() + activations.expected_density.mean()
    loss.backward()
    assert gates[0].b.grad[0] != 0 and gates[0].b.grad[1] == 0
    assert (gates[1].b.grad[:2] != 0).all()
    assert activations.expected_density[0, 1] == 0


def test_training_freezes_heads_that_are_far_from_opening(tmp_path):
    """At a validation, for good: skipped from then on, also after a resume, and closed in the twin that is saved."""
    place = save_llama_and_text(tmp_path)
    seen: list[Any] = []

    def close(run: Any) -> None:
        with torch.no_grad():
            run.twin.gates[0].b[1] = -8.0
            run.twin.gates[1].b[2] = -3.0

    def look(run: Any) -> None:
        seen.append((run.twin.frozen_heads, run.twin.gates[0].b[1].item()))

    first = settings(tmp_path / "run", steps=3, freeze_closed=True)
    edgewise.sparsify(
        place / "llama", place / "text.txt", first, callbacks=[BeforeStep(0, close), BeforeStep(2, look)]
    )
    more = settings(tmp_path / "run", steps=6, freeze_closed=True, resume=True)
    edgewise.sparsify(place / "llama", place / "text.txt", more, callbacks=[BeforeStep(4, look)])
    frozen = [[False, True, False, False], [False] * 4]
    assert [heads for heads, _ in seen] == [None, frozen]  # the first validation is that of the third step
    assert all(abs(b + 8) < 1 for _, b in seen)
    twin = edgewise.load(tmp_path / "run")
    assert gates_of(twin)[0].b[1] < -6
    assert gates_of(twin)[0].frozen_heads is None and gates_of(twin)[0].b.requires_grad
