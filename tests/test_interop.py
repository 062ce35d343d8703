"""A twin where a model of transformers goes: generate, pipeline, Trainer, PEFT, nnsight."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hosts import host, padding, text
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    pipeline,
)

import edgewise
from edgewise import EdgewiseError
from edgewise.gating.edge_gate import gates_of

PROMPT = 'The opposite of " large " is "'


@pytest.fixture
def twin() -> PreTrainedModel:
    return edgewise.gate(host("llama"), edgewise.GateConfig("relative", 2.0)).eval()


def greedy(model: PreTrainedModel, ids: Tensor, tokens: int) -> Tensor:
    """Greedy decoding without a cache, one text at a time: what `generate` must give."""
    for _ in range(tokens):
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    return ids


# -------------------------------------------------------------------------------------------------------- generate


@pytest.mark.parametrize("cache", [None, "static"])
def test_generate_follows_the_gates(cache, twin):
    ids = text(batch=1, length=8)
    options = {"cache_implementation": cache} if cache else {}
    out = twin.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0, **options)
    assert torch.equal(out, greedy(twin, ids, 6))
    with edgewise.mode(twin, "dense"):
        assert not torch.equal(out, greedy(twin, ids, 6))


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_batch_padded_left_generates_what_its_texts_do_alone(cache, twin):
    ids, mask = text(batch=2, length=12), padding("left", 2, 12, pads=5)
    options = {"cache_implementation": cache} if cache else {}
    out = twin.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=5,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    assert torch.equal(out[0, 5:], greedy(twin, ids[:1, 5:], 5)[0])
    assert torch.equal(out[1:], greedy(twin, ids[1:], 5))


def test_beam_search_gives_the_most_probable_of_its_beams(twin):
    ids = text(batch=2, length=8)
    out = twin.generate(
        ids, max_new_tokens=4, num_beams=3, num_return_sequences=3, do_sample=False, return_dict_in_generate=True,
        output_scores=True, eos_token_id=None, pad_token_id=0, length_penalty=0.0,
    )  # fmt: skip
    with torch.no_grad():
        logprobs = twin(input_ids=out.sequences, use_cache=False).logits.log_softmax(-1)
    chosen = logprobs[:, 7:-1].gather(-1, out.sequences[:, 8:, None]).sum((1, 2))
    torch.testing.assert_close(chosen, out.sequences_scores, rtol=1e-4, atol=1e-4)
    assert (chosen.view(2, 3).diff(dim=1) <= 1e-4).all()


def test_sampling_and_lookup_draw_from_the_gated_model(twin):
    """The scores of sampled tokens are the gated logits; prompt lookup, which verifies guesses, gives greedy tokens."""
    ids = text(batch=1, length=8)
    torch.manual_seed(0)
    out = twin.generate(
        ids, max_new_tokens=5, do_sample=True, temperature=1.0, top_k=0, return_dict_in_generate=True, output_logits=True,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with torch.no_grad():
        logits = twin(input_ids=out.sequences, use_cache=False).logits
    torch.testing.assert_close(torch.stack(out.logits, 1), logits[:, 7:-1], rtol=1e-4, atol=1e-4)
    repeated = ids[:, :4].repeat(1, 3)
    out = twin.generate(
        repeated,
        max_new_tokens=6,
        do_sample=False,
        prompt_lookup_num_tokens=3,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert torch.equal(out, greedy(twin, repeated, 6))


def test_continuous_batching_is_refused(twin):
    for model in (twin, copy.deepcopy(twin)):
        with pytest.raises(EdgewiseError, match="continuous batching"):
            model.generate_batch([[1, 2, 3]], max_new_tokens=2)


def test_pipeline_opens_a_twin_by_folder(tmp_path):
    model = edgewise.load("pocket-sparse")
    edgewise.save(model, tmp_path, edgewise.load_tokenizer("pocket-sparse"))
    generate = pipeline("text-generation", model=str(tmp_path), device="cpu")
    assert edgewise.gate_config(generate.model) == edgewise.gate_config(model)
    outs = generate(
        [PROMPT, f"{PROMPT} small"], max_new_tokens=1, do_sample=False, return_full_text=False, batch_size=2
    )
    assert outs[0][0]["generated_text"].strip() == "small"


# -------------------------------------------------------------------------------------------------------- training


class Texts(torch.utils.data.Dataset):
    """A few random texts, as the Trainer takes them."""

    def __init__(self) -> None:
        self.ids = text(batch=8, length=16)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def trainer_for(model: nn.Module, folder: Path, **options) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=4, learning_rate=1e-2, report_to="none",
        use_cpu=True, save_steps=4, logging_steps=1, disable_tqdm=True, **options,
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=Texts())


def test_the_trainer_trains_and_checkpoints_a_twin(twin, tmp_path):
    before = {name: p.detach().clone() for name, p in twin.named_parameters()}
    trainer = trainer_for(twin, tmp_path)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] and twin.training
    assert all(not torch.equal(p, before[name]) for name, p in twin.named_parameters() if "edge_gate" in name)
    again = edgewise.load(tmp_path / "checkpoint-4")
    ids = text()
    torch.testing.assert_close(again(input_ids=ids).logits, twin.eval()(input_ids=ids).logits)


def test_training_mode_does_not_make_gates_sample(twin):
    ids = text()
    with torch.no_grad():
        expected = twin(input_ids=ids).logits
        assert torch.equal(twin.train()(input_ids=ids).logits, expected)
        edgewise.mode(twin, "sample")
        assert not torch.equal(twin.eval()(input_ids=ids).logits, expected)
    assert repr(twin).count("mode='sample'") == len(gates_of(twin))


def test_lora_on_top_of_a_twin_trains_and_merges(twin, tmp_path):
    peft = pytest.importorskip("peft")
    ids = text()
    adapted = peft.get_peft_model(
        twin, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    trainer_for(adapted, tmp_path / "run").train()
    adapted.eval()
    with torch.no_grad():
        trained = adapted(input_ids=ids).logits
    adapted.save_pretrained(tmp_path / "adapter")
    fresh = edgewise.gate(host("llama"), edgewise.GateConfig("relative", 2.0)).eval()
    reloaded = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(reloaded(input_ids=ids).logits, trained)
    with pytest.raises(EdgewiseError, match="wrapper"):
        edgewise.save(reloaded, tmp_path / "wrapped")
    merged = reloaded.merge_and_unload()
    edgewise.save(merged, tmp_path / "merged")
    with torch.no_grad():
        torch.testing.assert_close(edgewise.load(tmp_path / "merged")(input_ids=ids).logits, trained)


def test_an_adapter_of_a_twin_opens_on_its_twin(twin, tmp_path):
    """As `AutoModelForCausalLM.from_pretrained` opens the folder of a LoRA adapter: on the base that it names."""
    peft = pytest.importorskip("peft")
    edgewise.save(twin, tmp_path / "twin")
    base = edgewise.load(tmp_path / "twin")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    adapted = peft.get_peft_model(base, config).eval()
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    assert all("lora_" in name for name in load_file(tmp_path / "adapter/adapter_model.safetensors"))
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert edgewise.gate_config(opened) == edgewise.gate_config(twin)
    with torch.no_grad():
        expected = adapted(input_ids=text()).logits
        assert not torch.allclose(twin(input_ids=text()).logits, expected)
        torch.testing.assert_close(opened(input_ids=text()).logits, expected)
    with pytest.raises(EdgewiseError, match="carries an adapter"):
        opened.save_pretrained(tmp_path / "both")
    for open_twin in (edgewise.load, edgewise.SparseTwin.from_pretrained):
        with pytest.raises(EdgewiseError, match="AutoModelForCausalLM"):
            open_twin(tmp_path / "adapter")
    (tmp_path / "adapter/adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(EdgewiseError, match="cannot be put on its twin"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")


# ------------------------------------------------------------- other tools; torch.compile is in test_operator.py


def test_servers_that_know_the_hosts_architecture_do_not_find_it_in_a_twins_config(twin, tmp_path):
    """vLLM and SGLang choose by `architectures`, and read every safetensors file: they would serve a dense model."""
    edgewise.save(twin, tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).architectures == ["SparseTwin"]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["SparseTwin"]


HELD_BY = {
    "edgewise.load": ["hub::test_edgewise_load_config_tokenizer_and_pipeline"],
    "AutoModelForCausalLM, SparseTwin": [
        "hub::test_a_twin_on_the_hub_opens_with_the_arguments_of_a_dense_model",
        "hub::test_another_revision_is_another_model",
        "hub::test_a_private_twin_opens_with_its_token_only",
        "hub::test_a_twin_has_the_precision_that_was_asked_for",
        "checkpoint::test_auto_classes_honour_or_refuse_what_they_are_given",
        "checkpoint::test_a_twin_that_is_partly_on_disk_gives_the_same_logits",
    ],
    "AutoModelForCausalLM without edgewise": [
        "checkpoint::test_plain_transformers_never_gives_the_dense_logits"
    ],
    "trust_remote_code": ["interop::test_a_twin_carries_no_code"],
    "AutoConfig": ["hub::test_edgewise_load_config_tokenizer_and_pipeline"],
    "Transcoder": ["hub::test_transcoders_go_to_the_hub_and_back"],
    "push_to_hub": [
        "hub::test_what_is_uploaded_is_a_twin",
        "hub::test_every_upload_has_a_model_card_that_the_hub_can_read",
    ],
    'pipeline("text-generation")': ["interop::test_pipeline_opens_a_twin_by_folder"],
    "generate": [
        "interop::test_generate_follows_the_gates",
        "interop::test_sampling_and_lookup_draw_from_the_gated_model",
        "interop::test_a_batch_padded_left_generates_what_its_texts_do_alone",
        "interop::test_beam_search_gives_the_most_probable_of_its_beams",
    ],
    "generate_batch (continuous batching)": ["interop::test_continuous_batching_is_refused"],
    "Trainer": [
        "interop::test_the_trainer_trains_and_checkpoints_a_twin",
        "interop::test_training_mode_does_not_make_gates_sample",
    ],
    "peft": ["interop::test_lora_on_top_of_a_twin_trains_and_merges"],
    "torch.compile": ["operator::test_twin_compiles_as_one_graph"],
    'attn_implementation="sdpa", set_attn_implementation': [
        "checkpoint::test_auto_classes_honour_or_refuse_what_they_are_given",
        "install::test_switching_the_attention_of_a_twin_is_refused",
    ],
    "variant, gguf_file, state_dict, tp_plan": [
        "checkpoint::test_auto_classes_honour_or_refuse_what_they_are_given"
    ],
    "lm-evaluation-harness": [
        "benchmarks::test_accuracy_is_that_of_the_gated_model",
        "benchmarks::test_the_harness_opens_a_twin_by_the_entry_point",
        "benchmarks::test_the_harness_s_own_command_line_scores_a_twin_end_to_end",
    ],
    "nnsight": ["interop::test_nnsight_reads_and_patches_the_sparse_model"],
    "TransformerLens": ["interop::test_transformer_lens_runs_another_model"],
    "circuit-tracer, Neuronpedia": [
        "tracing::test_the_exported_graph_fits_neuronpedias_schema",
        "tracing::test_a_graph_is_read_with_error_nodes_named_as_now_or_as_before",
    ],
    "MIB": ["joint_search::test_mib_graphs_are_read_back_as_they_were_written"],
    "vLLM, SGLang": [
        "interop::test_servers_that_know_the_hosts_architecture_do_not_find_it_in_a_twins_config"
    ],
}
"""Each line of the table in docs/interop.md, and the tests that hold it."""


def test_a_twin_carries_no_code(twin, tmp_path):
    edgewise.save(twin, tmp_path)
    assert "auto_map" not in (tmp_path / "config.json").read_text() and not list(tmp_path.rglob("*.py"))


def test_every_line_of_the_table_of_tools_is_held_by_a_test():
    tests = Path(__file__).parent
    guide = (tests.parent / "docs/interop.md").read_text()
    table = guide.partition("## What works where")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith(("| `", "| ["))]
    plain = [re.sub(r"`|\[|\]\([^)]*\)| \d[\d.]*", "", tool).strip() for tool, _, _ in rows]
    assert plain == list(HELD_BY)
    for name, (_, verdict, how) in zip(plain, rows, strict=True):
        assert verdict.strip() in {"works", "refused", "wrong: do not"} and how.strip(), name
        for file, _, test in (held.partition("::") for held in HELD_BY[name]):
            assert f"def {test}(" in (tests / f"test_{file}.py").read_text(), (name, file, test)


def test_transformer_lens_runs_another_model():
    """It loads the weights and computes attention itself: what it gives is the dense model's, and nothing says so."""
    pytest.importorskip(
        "transformer_lens", reason="transformer_lens is not installed: pip install transformer-lens"
    )
    script = Path(__file__).parent.parent / "benchmarks/peer_twin.py"
    out = subprocess.run(
        [sys.executable, script, "transformer_lens"], capture_output=True, text=True, check=True
    )
    seen = json.loads(out.stdout.splitlines()[-1])
    assert seen["calls"] == 0 and seen["from_dense"] < 1e-3 < seen["from_twin"]


def test_nnsight_reads_and_patches_the_sparse_model(twin):
    nnsight = pytest.importorskip("nnsight", reason="nnsight is not installed: pip install nnsight")
    ids = text(batch=1)
    with torch.no_grad():
        expected = twin(input_ids=ids).logits
    wrapped = nnsight.NNsight(twin)
    with torch.no_grad(), wrapped.trace(input_ids=ids):
        logits = wrapped.lm_head.output.save()
    torch.testing.assert_close(logits, expected)
    with torch.no_grad(), wrapped.trace(input_ids=ids):
        wrapped.model.layers[1].self_attn.o_proj.input[:] = 0
        patched = wrapped.lm_head.output.save()
    o_proj = twin.model.layers[1].self_attn.o_proj
    handle = o_proj.register_forward_pre_hook(lambda module, args: (torch.zeros_like(args[0]),))
    with torch.no_grad():
        by_hand = twin(input_ids=ids).logits
    handle.remove()
    torch.testing.assert_close(patched, by_hand)
    assert not torch.allclose(patched, expected)
