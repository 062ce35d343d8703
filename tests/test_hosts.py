"""Every architecture: dense mode equals the host, sparse mode the reference, with any mask, cache and precision."""

import copy

import pytest
import torch
from hosts import HOSTS, WINDOW, host, padding, text
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import StaticCache

import edgewise
from edgewise import GateConfig
from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.gating.attention_interface import prepared_mask, takes_prepared_mask
from edgewise.gating.edge_gate import gates_of
from edgewise.measure.forward import forward

GATES = [GateConfig("relative", 2.0), GateConfig("score", 0.5)]
NO_SINKS = GateConfig("relative", 2.0, sinks=False)
WITH_WINDOWS = ("mistral", "gemma3")
PAIRS = [
    *((kind, GATES[0]) for kind in HOSTS),
    *((kind, NO_SINKS) for kind in HOSTS if kind not in WITH_WINDOWS),
]
every_host = pytest.mark.parametrize(
    ("kind", "gate"), PAIRS, ids=[f"{kind}{'' if gate.sinks else ' without sinks'}" for kind, gate in PAIRS]
)


def logits(model: PreTrainedModel, ids: Tensor, **kwargs) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, **kwargs).logits


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_dense_mode_is_the_host(kind, side):
    model, ids, attention_mask = host(kind), text(), padding(side)
    model.set_attn_implementation("eager")
    expected = logits(model, ids, attention_mask=attention_mask)[attention_mask.bool()]
    edgewise.install(model)
    torch.testing.assert_close(
        logits(model, ids, attention_mask=attention_mask)[attention_mask.bool()],
        expected,
        rtol=1e-5,
        atol=1e-5,
    )
    edgewise.gate(model)
    with edgewise.mode(model, "dense"):
        torch.testing.assert_close(
            logits(model, ids, attention_mask=attention_mask)[attention_mask.bool()],
            expected,
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("kind", "gate"), [*PAIRS, *((kind, GATES[1]) for kind in HOSTS)], ids=lambda x: getattr(x, "kind", x)
)
def test_cached_generation_equals_uncached(kind, gate):
    model = edgewise.gate(host(kind), gate)
    ids, attention_mask = text(length=10), padding("left", length=10, pads=4)
    cached, uncached = (
        model.generate(
            ids,
            attention_mask=attention_mask,
            max_new_tokens=12,
            do_sample=False,
            use_cache=use,
            eos_token_id=None,
        )  # pyright: ignore
        for use in (True, False)
    )
    assert torch.equal(cached, uncached)
    with torch.no_grad():
        first = model(input_ids=ids[:, :6], attention_mask=attention_mask[:, :6], use_cache=True)
        continued = model(
            input_ids=ids[:, 6:], attention_mask=attention_mask, past_key_values=first.past_key_values
        )
    uncached_logits = logits(model, ids, attention_mask=attention_mask)
    torch.testing.assert_close(continued.logits, uncached_logits[:, 6:], rtol=1e-5, atol=1e-5)


@every_host
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_for_real_tokens(kind, gate, side):
    model = edgewise.gate(host(kind), gate)
    ids, attention_mask = text(), padding(side)
    unpadded = ids[:1, 6:] if side == "left" else ids[:1, :-6]
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
    with edgewise.tap(model) as padded:
        in_batch = logits(model, ids, attention_mask=attention_mask, position_ids=positions)[0][
            attention_mask[0].bool()
        ]
    torch.testing.assert_close(in_batch, logits(model, unpadded)[0], rtol=1e-4, atol=1e-5)
    with edgewise.tap(model) as plain:
        logits(model, unpadded)
        logits(model, ids[1:])
    torch.testing.assert_close(padded.density_per_head, plain.density_per_head)
    torch.testing.assert_close(padded.edges_per_query_per_head, plain.edges_per_query_per_head)


@every_host
def test_packed_documents_do_not_attend_to_each_other(kind, gate):
    model, ids = edgewise.gate(host(kind), gate), text(batch=1)
    positions = torch.cat([torch.arange(9), torch.arange(15)])[None]
    packed = logits(model, ids, position_ids=positions, use_cache=False)
    separate = torch.cat([logits(model, ids[:, :9]), logits(model, ids[:, 9:])], 1)
    torch.testing.assert_close(packed, separate, rtol=1e-5, atol=1e-5)


@every_host
def test_returned_attentions_are_the_gated_weights(kind, gate):
    model, ids = edgewise.gate(host(kind), gate), text()
    with edgewise.tap(model, read=["weights", "gates", "outputs"]) as activations:
        out = model(input_ids=ids, output_attentions=True)
    torch.testing.assert_close(out.logits, logits(model, ids), rtol=1e-5, atol=1e-5)  # reference against fast
    assert len(out.attentions) == 3
    for layer, weights in enumerate(out.attentions):
        assert weights.shape == (2, 4, 24, 24)
        assert torch.equal(weights, activations.last["weights"][layer])
        assert (weights.triu(1) == 0).all() and (weights[activations.last["gates"][layer] == 0] == 0).all()
        assert weights.sum(-1).max() <= 1 + 1e-6
        assert activations.last["outputs"][layer].shape[:3] == (2, 4, 24)
        assert gate.sinks or ((weights[..., 1:, 0] == 0).all() and weights[..., 0, 0].any())
    if kind == "mistral":
        assert (out.attentions[0].tril(-WINDOW) == 0).all()


@every_host
def test_static_cache(kind, gate):
    model, ids = edgewise.gate(host(kind), gate), text(batch=1, length=8)
    cache = StaticCache(config=model.config, max_cache_len=20)
    with torch.no_grad():
        first = model(input_ids=ids[:, :5], past_key_values=cache).logits
        second = model(input_ids=ids[:, 5:6], past_key_values=cache).logits
        third = model(input_ids=ids[:, 6:], past_key_values=cache).logits
    torch.testing.assert_close(torch.cat([first, second, third], 1), logits(model, ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("sampled", [False, True])
def test_half_precision(kind, sampled):
    """Gates and weights are computed in single precision, tapped or not; only inputs and outputs are in half precision."""
    model = edgewise.gate(host(kind).bfloat16(), GATES[0])
    results = []
    for read in ([], ["gates"]):
        torch.manual_seed(0)
        with (
            edgewise.mode(model, "sample" if sampled else "deterministic"),
            edgewise.tap(model, read=read) as activations,
        ):
            results.append((logits(model, text()), activations.density_per_head))
    assert results[0][0].dtype == torch.bfloat16
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0.005)
    with edgewise.mode(model, "dense"):
        exact, half = logits(edgewise.install(host(kind)), text()), logits(model, text()).float()
    assert (exact - half).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_autocast_forward_and_backward(kind):
    gradients = []
    for tapped in ([], ["gates"]):
        model = edgewise.gate(host(kind), GATES[0])
        with torch.autocast("cpu", torch.bfloat16), edgewise.tap(model, read=tapped):
            model(
                input_ids=text(), labels=text()
            ).loss.backward()  # backward inside autocast, as some trainers do
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        assert all(g.b.grad is not None for g in gates_of(model))
    assert (gradients[0] - gradients[1]).norm() < 0.03 * gradients[1].norm()


def test_gates_sample_where_they_are_told_to_and_sampling_is_seeded():
    model, ids = edgewise.gate(host("gpt2"), GATES[0]), text()
    model.config.attn_pdrop = 0.0
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    deterministic = logits(model, ids)
    assert torch.equal(deterministic, logits(model, ids))
    assert torch.equal(deterministic, logits(model.train(), ids)) and "mode='deterministic'" in repr(model)
    edgewise.mode(model, "sample")
    assert "mode='sample'" in repr(model.eval())
    torch.manual_seed(3)
    first, second = logits(model, ids), logits(model, ids)
    torch.manual_seed(3)
    assert torch.equal(first, logits(model, ids)) and torch.equal(second, logits(model, ids))
    assert not torch.equal(first, second)
    with edgewise.mode(model, "deterministic"):
        assert torch.equal(deterministic, logits(model, ids))
    assert not torch.equal(deterministic, logits(model, ids))


def test_gradient_checkpointing_regenerates_the_same_noise():
    gradients = []
    for checkpointing in (False, True):
        model = edgewise.gate(host("llama"), GATES[0]).train()
        edgewise.mode(model, "sample")
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(4)
        with edgewise.tap(model) as activations:
            loss = (
                model(input_ids=text(), labels=text(), use_cache=False).loss
                + activations.expected_density.mean()
            )
        loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_a_copy_is_independent():
    model = edgewise.gate(host("gpt2"), GATES[0])
    with edgewise.tap(model) as activations:
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin(input_ids=text())
            next(p for name, p in twin.named_parameters() if name.endswith("edge_gate.b")).fill_(9.0)
    assert not activations.counts
    assert (next(p for name, p in model.named_parameters() if name.endswith("edge_gate.b")) == 2.0).all()


def test_the_users_thread_limit_is_kept():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    logits(edgewise.gate(host("gpt2"), GATES[0]), text())
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("kind", HOSTS)
def test_a_prepared_mask_is_the_one_of_transformers(kind, is_packed):
    """Documents as the first visible key of each query: logits, gradients and edge counts are those of the mask."""
    has_windows = kind in ("mistral", "gemma3")
    model = edgewise.gate(host(kind), GateConfig("relative", b=1.0, sinks=has_windows))
    positions = torch.cat([torch.arange(9), torch.arange(15)]).expand(2, -1) if is_packed else None
    batch = Batch(text(2, 24), text(2, 24), positions)
    assert takes_prepared_mask(model) != has_windows
    results = []
    for run in (
        lambda: forward(model, batch),
        lambda: model(batch.ids, position_ids=positions, use_cache=False),
    ):
        model.zero_grad()
        with edgewise.tap(model) as activations:
            logits = run().logits
        (logits.square().mean() + activations.expected_density.mean()).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        counts = activations.density_per_head, activations.edges_per_query_per_head
        results.append((logits.detach(), gradients, *counts))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_host_that_reads_a_prepared_mask_as_a_mask_is_refused():
    ids = text(1, 8)
    mask = prepared_mask(ids, None)
    with pytest.raises(EdgewiseError, match="not causal"):
        edgewise.install(host("gpt2"))(ids, attention_mask=mask.clone(), use_cache=False)
