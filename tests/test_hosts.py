"""Every architecture: dense mode is the host itself, sparse mode is the reference, whatever the mask, cache or precision."""

import copy

import pytest
import torch
from hosts import HOSTS, VOCABULARY, WINDOW, host, padding, soft_capped, text
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import StaticCache
from transformers.models.bert import BertConfig, BertLMHeadModel
from transformers.models.bloom import BloomConfig, BloomForCausalLM
from transformers.models.gpt_oss import GptOssConfig, GptOssForCausalLM
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

import edgewise
from edgewise import EdgewiseError, GateConfig
from edgewise.gating.edge_gate import gates_of

GATES = [GateConfig("relative", 2.0), GateConfig("score", 0.5)]
NO_SINKS = GateConfig("relative", 2.0, sinks=False)
WITH_WINDOWS = ("mistral", "gemma3")
PAIRS = [
    *((kind, GATES[0]) for kind in HOSTS),
    *((kind, NO_SINKS) for kind in HOSTS if kind not in WITH_WINDOWS),
]
each_host = pytest.mark.parametrize(
    ("kind", "gate"), PAIRS, ids=[f"{kind}{'' if gate.sinks else ' without sinks'}" for kind, gate in PAIRS]
)


def logits(model: PreTrainedModel, ids: Tensor, **kwargs) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, **kwargs).logits


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_dense_mode_is_the_host(kind, side):
    model, ids, real = host(kind), text(), padding(side)
    model.set_attn_implementation("eager")
    expected = logits(model, ids, attention_mask=real)[real.bool()]
    edgewise.install(model)
    torch.testing.assert_close(
        logits(model, ids, attention_mask=real)[real.bool()], expected, rtol=1e-5, atol=1e-5
    )
    edgewise.gate(model)
    with edgewise.mode(model, "dense"):
        torch.testing.assert_close(
            logits(model, ids, attention_mask=real)[real.bool()], expected, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    ("kind", "gate"), [*PAIRS, *((kind, GATES[1]) for kind in HOSTS)], ids=lambda x: getattr(x, "kind", x)
)
def test_cached_generation_equals_uncached(kind, gate):
    model = edgewise.gate(host(kind), gate)
    ids, real = text(length=10), padding("left", length=10, pads=4)
    cached, uncached = (
        model.generate(
            ids, attention_mask=real, max_new_tokens=12, do_sample=False, use_cache=use, eos_token_id=None
        )  # pyright: ignore
        for use in (True, False)
    )
    assert torch.equal(cached, uncached)
    with torch.no_grad():
        first = model(input_ids=ids[:, :6], attention_mask=real[:, :6], use_cache=True)
        rest = model(input_ids=ids[:, 6:], attention_mask=real, past_key_values=first.past_key_values)
    whole = logits(model, ids, attention_mask=real)
    torch.testing.assert_close(rest.logits, whole[:, 6:], rtol=1e-5, atol=1e-5)


@each_host
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_for_real_tokens(kind, gate, side):
    model = edgewise.gate(host(kind), gate)
    ids, real = text(), padding(side)
    alone = ids[:1, 6:] if side == "left" else ids[:1, :-6]
    positions = (real.cumsum(1) - 1).clamp(min=0)
    with edgewise.tap(model) as padded:
        together = logits(model, ids, attention_mask=real, position_ids=positions)[0][real[0].bool()]
    torch.testing.assert_close(together, logits(model, alone)[0], rtol=1e-4, atol=1e-5)
    with edgewise.tap(model) as plain:
        logits(model, alone)
        logits(model, ids[1:])
    torch.testing.assert_close(padded.density_per_head, plain.density_per_head)
    torch.testing.assert_close(padded.edges_per_query_per_head, plain.edges_per_query_per_head)


@each_host
def test_packed_documents_do_not_see_each_other(kind, gate):
    model, ids = edgewise.gate(host(kind), gate), text(batch=1)
    positions = torch.cat([torch.arange(9), torch.arange(15)])[None]
    packed = logits(model, ids, position_ids=positions, use_cache=False)
    apart = torch.cat([logits(model, ids[:, :9]), logits(model, ids[:, 9:])], 1)
    torch.testing.assert_close(packed, apart, rtol=1e-5, atol=1e-5)


@each_host
def test_returned_attentions_are_the_gated_weights(kind, gate):
    model, ids = edgewise.gate(host(kind), gate), text()
    with edgewise.tap(model, read=["weights", "gates", "outputs"]) as seen:
        out = model(input_ids=ids, output_attentions=True)
    torch.testing.assert_close(out.logits, logits(model, ids), rtol=1e-5, atol=1e-5)  # reference against fast
    assert len(out.attentions) == 3
    for layer, weights in enumerate(out.attentions):
        assert weights.shape == (2, 4, 24, 24)
        assert torch.equal(weights, seen.last["weights"][layer])
        assert (weights.triu(1) == 0).all() and (weights[seen.last["gates"][layer] == 0] == 0).all()
        assert weights.sum(-1).max() <= 1 + 1e-6
        assert seen.last["outputs"][layer].shape[:3] == (2, 4, 24)
        assert gate.sinks or ((weights[..., 1:, 0] == 0).all() and weights[..., 0, 0].any())
    if kind == "mistral":
        assert (out.attentions[0].tril(-WINDOW) == 0).all()


@pytest.mark.parametrize("kind", WITH_WINDOWS)
def test_windows_and_gates_without_sinks_do_not_go_together(kind):
    with pytest.raises(EdgewiseError, match="sliding windows"):
        edgewise.gate(host(kind), NO_SINKS)


@each_host
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
    """Gates and weights are computed in single precision, tapped or not; only what goes in and out is halved."""
    model = edgewise.gate(host(kind).bfloat16(), GATES[0])
    results = []
    for read in ([], ["gates"]):
        torch.manual_seed(0)
        with (
            edgewise.mode(model, "sample" if sampled else "deterministic"),
            edgewise.tap(model, read=read) as seen,
        ):
            results.append((logits(model, text()), seen.density_per_head))
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


def test_sampling_is_seeded_and_follows_training_mode():
    model, ids = edgewise.gate(host("gpt2"), GATES[0]), text()
    model.config.attn_pdrop = 0.0
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    calm = logits(model, ids)
    assert torch.equal(calm, logits(model, ids))
    model.train()
    torch.manual_seed(3)
    first, second = logits(model, ids), logits(model, ids)
    torch.manual_seed(3)
    assert torch.equal(first, logits(model, ids)) and torch.equal(second, logits(model, ids))
    assert not torch.equal(first, second)
    with edgewise.mode(model, "deterministic"):
        assert torch.equal(calm, logits(model, ids))


def test_gradient_checkpointing_sees_the_same_noise():
    gradients = []
    for checkpointing in (False, True):
        model = edgewise.gate(host("llama"), GATES[0]).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(4)
        with edgewise.tap(model) as seen:
            loss = model(input_ids=text(), labels=text(), use_cache=False).loss + seen.expected_density.mean()
        loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_a_copy_is_independent():
    model = edgewise.gate(host("gpt2"), GATES[0])
    with edgewise.tap(model) as seen:
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin(input_ids=text())
            next(p for name, p in twin.named_parameters() if name.endswith("edge_gate.b")).fill_(9.0)
    assert not seen.counts
    assert (next(p for name, p in model.named_parameters() if name.endswith("edge_gate.b")) == 2.0).all()


# ------------------------------------------------------------------------------------------------------ refusals


def test_soft_capped_scores_are_refused_and_the_host_is_left_as_it_was():
    model = soft_capped()
    before = model.config._attn_implementation
    with pytest.raises(EdgewiseError, match="softcap"):
        edgewise.install(model)
    assert model.config._attn_implementation == before
    logits(model, text())


def test_attention_sinks_are_refused():
    config = GptOssConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, pad_token_id=0,
    )  # fmt: skip
    with pytest.raises(EdgewiseError, match="s_aux"):
        edgewise.install(GptOssForCausalLM(config).eval())


def test_an_encoder_is_refused():
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    with pytest.raises(EdgewiseError, match="not causal"):
        edgewise.install(BertLMHeadModel(config).eval())


def test_an_encoder_decoder_is_refused():
    config = T5Config(vocab_size=VOCABULARY, d_model=32, d_ff=48, num_layers=2, num_heads=4, d_kv=8)
    with pytest.raises(EdgewiseError, match="encoder-decoder"):
        edgewise.install(T5ForConditionalGeneration(config).eval())


def test_attention_outside_the_registry_is_refused():
    with pytest.raises(EdgewiseError, match="attention registry"):
        edgewise.install(
            BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)).eval()
        )


def test_a_host_that_changes_its_scores_unannounced_is_refused(monkeypatch):
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(
        modeling_llama,
        "eager_attention_forward",
        lambda m, q, k, v, mask, scaling, **kw: _squared(q, k, v, mask),
    )
    with pytest.raises(EdgewiseError, match="cannot follow"):
        edgewise.install(host("llama"))


def _squared(q, k, v, mask):
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    weights = torch.softmax((q @ k.mT) ** 2 + mask, -1)
    return (weights @ v).transpose(1, 2).contiguous(), weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_unannounced_soft_cap_is_refused_in_every_precision(monkeypatch, dtype):
    from transformers.models.llama import modeling_llama

    def capped(module, q, k, v, mask, scaling, **kwargs):
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        s = 50 * torch.tanh(q @ k.mT * scaling / 50)
        weights = torch.softmax(s + (0 if mask is None else mask), -1)
        return (weights @ v).transpose(1, 2).contiguous(), weights

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", capped)
    with pytest.raises(EdgewiseError, match="cannot follow"):
        edgewise.install(host("llama").to(dtype))


@pytest.mark.parametrize("shape", [(2, 1, 14, 14), (2, 1, 1, 24), (2, 3, 14, 24), (3, 1, 14, 24)])
def test_a_mask_of_the_wrong_shape_is_refused(shape):
    model = edgewise.gate(host("llama"), GATES[0])
    past = model(input_ids=text()[:, :10], use_cache=True).past_key_values
    mask = torch.ones(shape, dtype=torch.bool).tril(shape[-1] - shape[-2])
    with pytest.raises(EdgewiseError, match="attention mask has shape"):
        model(input_ids=text()[:, 10:], past_key_values=past, attention_mask=mask)


def test_a_mask_that_is_not_causal_is_refused():
    model = edgewise.gate(host("llama"), GATES[0])
    everything = torch.ones(2, 1, 24, 24, dtype=torch.bool)
    with pytest.raises(EdgewiseError, match="not causal"):
        model(input_ids=text(), attention_mask=everything)
    biased = torch.zeros(2, 1, 24, 24).masked_fill(everything.triu(1), torch.finfo(torch.float32).min)
    torch.testing.assert_close(logits(model, text(), attention_mask=biased), logits(model, text()))
    biased[0, 0, 5, 3] = -0.5
    with pytest.raises(EdgewiseError, match="other than 0"):
        model(input_ids=text(), attention_mask=biased)


def test_a_text_longer_than_the_context_is_refused():
    model = edgewise.gate(host("gpt2"), GATES[0])
    for part in (model, model.transformer):
        with pytest.raises(EdgewiseError, match="65 tokens long, the model's context is 64"):
            part(input_ids=text(length=65))
    with pytest.raises(EdgewiseError, match="65 tokens long"):
        model(input_ids=None, inputs_embeds=torch.zeros(1, 65, 32))
    with pytest.raises(EdgewiseError, match="65 tokens long"):
        model.generate(text(length=60), max_new_tokens=9, do_sample=False, eos_token_id=None)  # pyright: ignore


def test_setting_the_attention_by_hand_is_refused():
    model = host("gpt2")
    model.set_attn_implementation("edgewise")
    with pytest.raises(EdgewiseError, match=r"edgewise\.install"):
        model(input_ids=text())
    with pytest.raises(EdgewiseError, match="not loaded by edgewise"), edgewise.tap(host("gpt2")):
        pass


def test_a_model_without_a_head_is_refused():
    with pytest.raises(EdgewiseError, match="no language-model head"):
        edgewise.install(host("llama").model)


def test_gating_twice_is_refused_and_installing_twice_changes_nothing():
    model = edgewise.gate(host("llama"), GATES[0])
    with torch.no_grad():
        gates_of(model)[0].b.fill_(9.0)
    with pytest.raises(EdgewiseError, match="already has a gate"):
        edgewise.gate(model)
    edgewise.install(model)
    assert (gates_of(model)[0].b == 9.0).all()


def test_reentrant_checkpointing_is_refused_where_it_would_lose_the_density():
    model = edgewise.gate(host("llama"), GATES[0]).train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(EdgewiseError, match="use_reentrant=False"), edgewise.tap(model):
        pass


def test_the_users_thread_limit_is_kept():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    logits(edgewise.gate(host("gpt2"), GATES[0]), text())
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_switching_the_attention_of_a_twin_is_refused():
    model = edgewise.gate(host("llama"), GATES[0])
    model.set_attn_implementation("sdpa")
    for part in (model, model.model):
        with pytest.raises(EdgewiseError, match="ignores its gates"):
            part(input_ids=text())
    model.set_attn_implementation("edgewise")
    logits(model, text())
