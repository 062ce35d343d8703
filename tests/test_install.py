"""Installing gates: hosts, masks, texts and settings that are refused, in one sentence that says why."""

import pytest
import torch
from hosts import VOCABULARY, host, soft_capped, text
from transformers.models.bert import BertConfig, BertLMHeadModel
from transformers.models.bloom import BloomConfig, BloomForCausalLM
from transformers.models.deepseek_v32 import DeepseekV32Config, DeepseekV32ForCausalLM
from transformers.models.gpt_oss import GptOssConfig, GptOssForCausalLM
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

import edgewise
from edgewise import EdgewiseError, GateConfig
from edgewise.gating.edge_gate import gates_of

GATE = GateConfig("relative", 2.0)


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_sliding_windows_with_a_gate_without_sinks_are_refused(kind):
    with pytest.raises(EdgewiseError, match="sliding windows"):
        edgewise.gate(host(kind), GateConfig("relative", 2.0, sinks=False))


def test_soft_capped_scores_are_refused_and_the_host_is_left_as_it_was():
    model = soft_capped()
    before = model.config._attn_implementation
    with pytest.raises(EdgewiseError, match="softcap"):
        edgewise.install(model)
    assert model.config._attn_implementation == before
    model(input_ids=text())


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


def test_an_indexer_that_chooses_keys_is_refused():
    """Its choice arrives as an argument that only flash kernels read; eager attention has it in the mask."""
    config = DeepseekV32Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=4, v_head_dim=8,
        qk_nope_head_dim=8, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, index_topk=30,
        index_head_dim=8, index_n_heads=2,
    )  # fmt: skip
    with pytest.raises(EdgewiseError, match="by indices"):
        edgewise.install(DeepseekV32ForCausalLM(config).eval())


def test_an_argument_that_is_not_known_is_refused_unless_it_is_empty():
    model = edgewise.gate(host("llama"), GATE)
    with torch.no_grad():
        expected = model(input_ids=text()).logits
        for nothing in (None, False, 0, 0.0):
            assert torch.equal(model(input_ids=text(), new_bias=nothing).logits, expected)
        assert torch.equal(model(input_ids=text(), token_type_ids=torch.ones(2, 24)).logits, expected)
        for something in (torch.zeros(1), 0.5, True, [1]):
            with pytest.raises(EdgewiseError, match="by new_bias"):
                model(input_ids=text(), new_bias=something)


def test_a_change_beyond_the_hosts_window_is_seen(monkeypatch):
    """A probe is long enough for what the config says; here keys are hidden from token 40 on, in eager attention only."""
    from transformers.models.llama import modeling_llama

    eager = modeling_llama.eager_attention_forward

    def windowed(module, q, k, v, mask, **kwargs):
        queries, keys = q.shape[2], k.shape[2]
        far = torch.ones(queries, keys, dtype=torch.bool).tril(-40)
        mask = torch.full((queries, keys), -torch.inf).triu(1) if mask is None else mask
        return eager(module, q, k, v, mask.masked_fill(far, torch.finfo(q.dtype).min), **kwargs)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", windowed)
    model = host("llama")
    model.config.sliding_window = 40
    with pytest.raises(EdgewiseError, match="cannot follow"):
        edgewise.install(model)


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
    model = edgewise.gate(host("llama"), GATE)
    past = model(input_ids=text()[:, :10], use_cache=True).past_key_values
    mask = torch.ones(shape, dtype=torch.bool).tril(shape[-1] - shape[-2])
    with pytest.raises(EdgewiseError, match="attention mask has shape"):
        model(input_ids=text()[:, 10:], past_key_values=past, attention_mask=mask)


def test_a_mask_that_is_not_causal_is_refused():
    model = edgewise.gate(host("llama"), GATE)
    everything = torch.ones(2, 1, 24, 24, dtype=torch.bool)
    with pytest.raises(EdgewiseError, match="not causal"):
        model(input_ids=text(), attention_mask=everything)
    biased = torch.zeros(2, 1, 24, 24).masked_fill(everything.triu(1), torch.finfo(torch.float32).min)
    torch.testing.assert_close(
        model(input_ids=text(), attention_mask=biased).logits, model(input_ids=text()).logits
    )
    biased[0, 0, 5, 3] = -0.5
    with pytest.raises(EdgewiseError, match="other than 0"):
        model(input_ids=text(), attention_mask=biased)


def test_a_text_longer_than_the_context_is_refused():
    model = edgewise.gate(host("gpt2"), GATE)
    for module in (model, model.transformer):
        with pytest.raises(EdgewiseError, match="65 tokens long, the model's context is 64"):
            module(input_ids=text(length=65))
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
    model = edgewise.gate(host("llama"), GATE)
    with torch.no_grad():
        gates_of(model)[0].b.fill_(9.0)
    with pytest.raises(EdgewiseError, match="already has a gate"):
        edgewise.gate(model)
    edgewise.install(model)
    assert (gates_of(model)[0].b == 9.0).all()


def test_reentrant_checkpointing_is_refused_where_it_would_lose_the_density():
    model = edgewise.gate(host("llama"), GATE).train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(EdgewiseError, match="use_reentrant=False"), edgewise.tap(model):
        pass


def test_switching_the_attention_of_a_twin_is_refused():
    model = edgewise.gate(host("llama"), GATE)
    model.set_attn_implementation("sdpa")
    for module in (model, model.model):
        with pytest.raises(EdgewiseError, match="ignores its gates"):
            module(input_ids=text())
    model.set_attn_implementation("edgewise")
    model(input_ids=text())
