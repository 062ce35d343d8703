"""A twin where a model of transformers goes: generate, pipeline, Trainer, PEFT, nnsight."""

import json
from pathlib import Path

import pytest
import torch
from hosts import host, padding, text
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel, Trainer, TrainingArguments, pipeline

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


# ------------------------------------------------------------- other tools; torch.compile is in test_operator.py


def test_servers_that_know_the_hosts_architecture_do_not_find_it_in_a_twins_config(twin, tmp_path):
    """vLLM and SGLang choose by `architectures`, and read every safetensors file: they would serve a dense model."""
    edgewise.save(twin, tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).architectures == ["SparseTwin"]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["SparseTwin"]


def test_every_row_of_the_table_of_tools_names_what_holds_it():
    """A line that works names its test here; one that is refused or warned of says what to do instead."""
    table = (
        (Path(__file__).parent.parent / "docs/interop.md")
        .read_text()
        .partition("## What works where")[2]
        .partition("\n## ")[0]
    )
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith(("| `", "| ["))]
    assert len(rows) >= 14
    for tool, verdict, how in rows:
        assert verdict.strip() in {"works", "refused", "wrong: do not"}, tool
        assert how.strip(), tool


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
