"""Checkpoints: what is saved comes back to the bit, and never as something else."""

import copy
import inspect
import itertools
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hosts import VOCABULARY, host, text
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import gelu, layer_norm
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.models.bert import BertConfig, BertForMaskedLM
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

import edgewise
from edgewise import EdgewiseError, GateConfig
from edgewise.gating.edge_gate import gates_of
from edgewise.models.twin_format import FORMAT


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=text()).logits


def trained_twin(kind: str = "llama", gate: GateConfig | None = None):
    """A twin whose thresholds have moved apart, as after training."""
    model = edgewise.gate(host(kind), gate or GateConfig("relative", 2.0)).eval()
    with torch.no_grad():
        for g in gates_of(model):
            if isinstance(g.b, nn.Parameter):
                g.b.add_(torch.linspace(-0.5, 0.5, len(g.b)))
    return model


@pytest.mark.parametrize(
    ("kind", "gate"),
    [
        *itertools.product(
            ["gpt2", "llama", "gemma3"], [GateConfig("relative", 2.0), GateConfig("score", 0.5)]
        ),
        *itertools.product(["gpt2", "llama"], [GateConfig("relative", 2.0, sinks=False)]),
    ],
)
def test_a_twin_comes_back_to_the_bit(kind, gate, tmp_path):
    model = trained_twin(kind, gate)
    edgewise.save(model, tmp_path / "twin")
    assert json.loads((tmp_path / "twin" / "config.json").read_text())["edgewise"]["format"] == FORMAT
    again = edgewise.load(tmp_path / "twin")
    assert edgewise.gate_config(again) == gate
    assert torch.equal(logits(again), logits(model))
    assert type(again) is type(model) and not again.training
    # and once more, from the reloaded one
    edgewise.save(again, tmp_path / "again")
    assert torch.equal(logits(edgewise.load(tmp_path / "again")), logits(model))


def test_a_dense_host_comes_back_and_stays_plain(tmp_path):
    model = edgewise.install(host("gpt2"))
    edgewise.save(model, tmp_path / "host")
    assert torch.equal(logits(edgewise.load(tmp_path / "host")), logits(model))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "host").eval()
    torch.testing.assert_close(logits(plain), logits(model))
    assert edgewise.gate_config(edgewise.load(tmp_path / "host")) is None


def test_dtype_and_shards(tmp_path):
    model = trained_twin()
    model.save_pretrained(tmp_path / "twin", max_shard_size="20KB")
    assert len(list((tmp_path / "twin").glob("twin-*.safetensors"))) > 2
    assert torch.equal(logits(edgewise.load(tmp_path / "twin")), logits(model))
    half = edgewise.load(tmp_path / "twin", dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    shard = sorted((tmp_path / "twin").glob("twin-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(EdgewiseError, match=f"{shard.name} is missing"):
        edgewise.load(tmp_path / "twin")


def test_every_way_of_saving_a_twin_writes_a_twin(tmp_path):
    """`push_to_hub` calls `save_pretrained`; so do trainers. A deep copy must save itself, not its original."""
    model = trained_twin()
    model.save_pretrained(tmp_path / "a")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        gates_of(twin)[0].b.fill_(0.1)
    twin.save_pretrained(str(tmp_path / "b"))
    assert torch.equal(logits(edgewise.load(tmp_path / "a")), logits(model))
    assert torch.equal(logits(edgewise.load(tmp_path / "b")), logits(twin))
    assert not torch.equal(logits(model), logits(twin))
    for folder in "ab":
        assert not list((tmp_path / folder).glob("model*")) and not list((tmp_path / folder).glob(".saving*"))


def test_gpt2_by_name_from_the_local_cache(tmp_path):
    """The hub's own cache layout, without a network: the code that loads by name is the real one."""
    model = host("gpt2")
    snapshot = tmp_path / "hub" / "models--gpt2" / "snapshots" / ("0" * 40)
    model.save_pretrained(snapshot)
    (tmp_path / "hub" / "models--gpt2" / "refs").mkdir()
    (tmp_path / "hub" / "models--gpt2" / "refs" / "main").write_text("0" * 40)
    code = f"""
import torch, edgewise
model = edgewise.load("gpt2")
print(edgewise.info("gpt2").architecture, model(input_ids=torch.tensor({text().tolist()})).logits.sum().item())
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    architecture, total = done.stdout.split()
    assert architecture == "GPT2LMHeadModel"
    assert float(total) == pytest.approx(logits(edgewise.install(model)).sum().item(), rel=1e-4)


def test_saving_over_an_older_twin_leaves_nothing_of_it(tmp_path):
    trained_twin().save_pretrained(tmp_path, max_shard_size="20KB")
    model = trained_twin("gpt2")
    edgewise.save(model, tmp_path)
    assert sorted(f.name for f in tmp_path.glob("twin*")) == ["twin-manifest.json", "twin.safetensors"]
    assert torch.equal(logits(edgewise.load(tmp_path)), logits(model))


def test_a_pickled_twin_is_a_twin(tmp_path):
    model = trained_twin()
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(logits(again), logits(model))
    again.save_pretrained(tmp_path / "twin")
    assert torch.equal(logits(edgewise.load(tmp_path / "twin")), logits(model))


def test_twins_and_dense_models_do_not_share_a_folder(tmp_path):
    """A stale file of the other kind would open as the other model."""
    edgewise.save(edgewise.install(host("llama")), tmp_path / "dense")
    with pytest.raises(EdgewiseError, match="holds a dense model's weights"):
        edgewise.save(trained_twin(), tmp_path / "dense")
    edgewise.save(trained_twin(), tmp_path / "twin")
    with pytest.raises(EdgewiseError, match="holds a sparse twin"):
        edgewise.save(edgewise.install(host("llama")), tmp_path / "twin")


@pytest.mark.parametrize(
    "gate", [GateConfig("relative", 2.0), GateConfig("score", 0.5)], ids=lambda g: g.kind
)
def test_a_twins_weights_under_a_dense_config_are_refused(gate, tmp_path):
    """As `accelerator.save_model` or a hand-written `save_file` would leave them."""
    model = trained_twin(gate=gate)
    model.config.save_pretrained(tmp_path)
    save_file(
        {key: x.clone() for key, x in model.state_dict().items()},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(EdgewiseError, match="sparse twin's weights under a dense config"):
        edgewise.load(tmp_path)


def test_wrappers_and_other_processes(tmp_path):
    with pytest.raises(EdgewiseError, match="is a wrapper"):
        edgewise.save(nn.Sequential(trained_twin()), tmp_path / "wrapped")  # pyright: ignore
    trained_twin().save_pretrained(tmp_path / "rank 1", is_main_process=False)
    assert not (tmp_path / "rank 1").exists()
    with pytest.raises(EdgewiseError, match="without a variant"):
        trained_twin().save_pretrained(tmp_path / "half", variant="fp16")


def test_the_generation_config_comes_along(tmp_path):
    model = trained_twin()
    model.generation_config.max_new_tokens = 17
    edgewise.save(model, tmp_path)
    assert edgewise.load(tmp_path).generation_config.max_new_tokens == 17


def test_auto_classes_honour_or_refuse_what_they_are_given(tmp_path):
    model = trained_twin()
    edgewise.save(model, tmp_path / "twin")
    edgewise.save(edgewise.install(host("llama")), tmp_path / "dense")
    open_twin: Any = partial(AutoModelForCausalLM.from_pretrained, tmp_path / "twin")
    assert open_twin(dtype="bfloat16").dtype == open_twin(torch_dtype=torch.bfloat16).dtype == torch.bfloat16
    assert torch.equal(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path, subfolder="twin")), logits(model)
    )
    twin, report = open_twin(output_loading_info=True, use_cache=False, device_map="cpu")
    assert not report["missing_keys"] and not twin.config.use_cache
    assert torch.equal(logits(twin), logits(model))
    assert AutoConfig.from_pretrained(tmp_path / "twin").hidden_size == model.config.hidden_size
    untrained = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "twin"))
    assert edgewise.gate_config(untrained) == edgewise.gate_config(model)
    refused = {
        "attn_implementation": "sdpa", "state_dict": model.state_dict(), "gguf_file": "a.gguf", "tp_plan": "auto",
        "variant": "fp16", "ignore_mismatched_sizes": True,
    }  # fmt: skip
    for key, value in refused.items():
        with pytest.raises(EdgewiseError, match=f"`{key}`"):
            edgewise.SparseTwin.from_pretrained(tmp_path / "twin", **{key: value})
    with pytest.raises(EdgewiseError, match="is a dense model"):
        edgewise.SparseTwin.from_pretrained(tmp_path / "dense")
    for publish in (edgewise.SparseTwin.save_pretrained, edgewise.SparseTwin.push_to_hub):
        with pytest.raises(EdgewiseError, match="this model is dense"):
            publish(edgewise.install(host("llama")), tmp_path / "other")


def test_a_twin_opens_with_every_argument_that_transformers_names(tmp_path):
    """Those that mean nothing for a folder or a twin change nothing."""
    model = trained_twin()
    edgewise.save(model, tmp_path / "twin")
    given: dict[str, Any] = {
        "config": AutoConfig.from_pretrained(tmp_path / "twin"), "cache_dir": tmp_path / "cache", "token": False,
        "ignore_mismatched_sizes": False, "force_download": False, "local_files_only": True, "revision": "main",
        "use_safetensors": True, "weights_only": True, "fusion_config": None, "disable_mmap": True,
    }  # fmt: skip
    named = inspect.signature(PreTrainedModel.from_pretrained).parameters.values()
    known = {p.name for p in named if p.kind is p.KEYWORD_ONLY}
    assert known - given.keys() == set(), "transformers has an argument that nobody has thought of"
    given |= {
        "dtype": "auto", "device_map": "auto", "max_memory": {"cpu": "8GB"}, "offload_folder": tmp_path / "offload",
        "offload_buffers": True, "low_cpu_mem_usage": True, "trust_remote_code": False, "code_revision": None,
        "proxies": None, "subfolder": "", "variant": None, "quantization_config": None, "adapter_kwargs": {},
        "generation_config": GenerationConfig(max_new_tokens=7), "attn_implementation": "edgewise", "use_kernels": False,
        "allow_all_kernels": False, "tp_plan": None, "key_mapping": None, "gguf_file": None, "state_dict": None,
    }  # fmt: skip
    for open_twin in (AutoModelForCausalLM.from_pretrained, edgewise.SparseTwin.from_pretrained):
        twin: Any = open_twin(tmp_path / "twin", **given)
        assert torch.equal(logits(twin), logits(model)) and twin.generation_config.max_new_tokens == 7


def test_a_twin_that_is_partly_on_disk_gives_the_same_logits(tmp_path):
    """`device_map` as accelerate dispatches it: the weights of a layer come from a file when it is called."""
    model = trained_twin()
    edgewise.save(model, tmp_path / "twin")
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    places |= {f"model.layers.{layer}": "disk" if layer == 1 else "cpu" for layer in range(3)}
    twin: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path / "twin", device_map=places, offload_folder=tmp_path / "offload"
    )
    assert twin.hf_device_map["model.layers.1"] == "disk"
    assert next(twin.model.layers[1].parameters()).is_meta
    torch.testing.assert_close(logits(twin), logits(model))


# ------------------------------------------------------------------------------- transformers without edgewise

OPEN = """
import sys
{imports}
try:
    model = {cls}.from_pretrained({path!r})
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
else:
    import torch
    ids = torch.tensor({ids})
    print("logits", model.eval()(input_ids=ids).logits.sum().item())
assert {loaded} == ("edgewise" in sys.modules)
"""


TRANSFORMERS = "from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM"


def opened_elsewhere(path: Path, cls: str, imports: str = TRANSFORMERS) -> str:
    loaded = "edgewise" in imports
    code = OPEN.format(path=str(path), cls=cls, ids=text().tolist(), imports=imports, loaded=loaded)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_plain_transformers_never_gives_the_dense_logits(tmp_path):
    model = trained_twin()
    edgewise.save(model, tmp_path)
    answer = opened_elsewhere(tmp_path, "AutoModelForCausalLM")
    assert answer.startswith("ValueError") and "pip install edgewise" in answer
    assert opened_elsewhere(tmp_path, "LlamaForCausalLM").startswith("OSError")


@pytest.mark.parametrize(
    "imports",
    [
        f"import edgewise\n{TRANSFORMERS}",
        f"{TRANSFORMERS}\nimport edgewise",
        "import edgewise, transformers; from transformers import AutoConfig; AutoConfig\n" + TRANSFORMERS,
        "import transformers, edgewise; AutoModelForCausalLM = transformers.AutoModelForCausalLM",
    ],
    ids=["edgewise first", "transformers first", "configs before models", "transformers first, lazily"],
)
def test_a_bare_import_registers_twins(imports, tmp_path):
    model = trained_twin()
    edgewise.save(model, tmp_path)
    answer = opened_elsewhere(tmp_path, "AutoModelForCausalLM", imports)
    assert float(answer.removeprefix("logits ")) == pytest.approx(logits(model).sum().item(), rel=1e-5)


def test_importing_edgewise_imports_neither_torch_nor_transformers():
    code = "import sys, edgewise; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ------------------------------------------------------------------------------------------ the authors' layout


def nanogpt_state(
    vocabulary: int, context: int, layers: int, width: int, bias: bool = True
) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    state = {
        "transformer.wte.weight": torch.randn(vocabulary, width),
        "transformer.wpe.weight": torch.randn(context, width),
    }
    sizes = {
        "attn.c_attn": (3 * width, width),
        "attn.c_proj": (width, width),
        "mlp.c_fc": (4 * width, width),
        "mlp.c_proj": (width, 4 * width),
    }
    for i in range(layers):
        for name, size in sizes.items():
            state[f"transformer.h.{i}.{name}.weight"] = 0.3 * torch.randn(size)
            state[f"transformer.h.{i}.{name}.bias"] = 0.3 * torch.randn(size[0])
        for name in ("ln_1", "ln_2"):
            state[f"transformer.h.{i}.{name}.weight"] = 1 + 0.1 * torch.randn(width)
            state[f"transformer.h.{i}.{name}.bias"] = 0.1 * torch.randn(width)
        state[f"transformer.h.{i}.attn.bias"] = torch.ones(
            1, 1, context, context
        ).tril()  # nanoGPT's mask buffer
    state["transformer.ln_f.weight"], state["transformer.ln_f.bias"] = torch.ones(width), torch.zeros(width)
    state["lm_head.weight"] = state["transformer.wte.weight"]
    return (
        state
        if bias
        else {key: x for key, x in state.items() if not key.endswith(".bias") or "attn.bias" in key}
    )


def nanogpt_logits(state: dict[str, torch.Tensor], ids: torch.Tensor, heads: int) -> torch.Tensor:
    """An independent forward pass in the authors' terms: softmax(s) * (s > 0)."""

    def of(name: str) -> torch.Tensor | None:
        return state.get(name)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return nn.functional.linear(x, state[name + ".weight"], of(name + ".bias"))

    batch, length = ids.shape
    width = state["transformer.wte.weight"].shape[1]
    x = state["transformer.wte.weight"][ids] + state["transformer.wpe.weight"][:length]
    for i in range(sum(key.endswith("attn.c_attn.weight") for key in state)):
        block = f"transformer.h.{i}."
        h = layer_norm(x, (width,), state[block + "ln_1.weight"], of(block + "ln_1.bias"))
        q, k, v = (
            y.view(batch, length, heads, -1).transpose(1, 2)
            for y in linear(h, block + "attn.c_attn").split(width, -1)
        )
        s = (q @ k.mT / (width // heads) ** 0.5).masked_fill(
            torch.ones(length, length).triu(1).bool(), -torch.inf
        )
        y = (torch.softmax(s, -1) * (s > 0)) @ v
        x = x + linear(y.transpose(1, 2).reshape(batch, length, width), block + "attn.c_proj")
        h = layer_norm(x, (width,), state[block + "ln_2.weight"], of(block + "ln_2.bias"))
        x = x + linear(gelu(linear(h, block + "mlp.c_fc")), block + "mlp.c_proj")
    x = layer_norm(x, (width,), state["transformer.ln_f.weight"], of("transformer.ln_f.bias"))
    return x @ state["lm_head.weight"].T


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "compiled checkpoint with arguments"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_the_authors_layout(wrapped, bias, tmp_path):
    state = nanogpt_state(VOCABULARY, 32, 2, 128, bias)
    heads = 4 if wrapped else 2
    content = state
    if wrapped:
        content = {"model": {"_orig_mod." + k: x for k, x in state.items()}, "model_args": {"n_head": 4}}
    torch.save(content, tmp_path / "final.pth")
    model = edgewise.load(tmp_path)
    exact = nanogpt_logits({name: x.double() for name, x in state.items()}, text(), heads).float()
    torch.testing.assert_close(logits(model), exact, rtol=1e-4, atol=3e-4)  # logits of up to 41
    assert edgewise.gate_config(model) == GateConfig("score", 0.0)
    edgewise.save(model, tmp_path / "twin")
    assert torch.equal(
        logits(edgewise.load(tmp_path / "twin")), logits(edgewise.load(tmp_path / "final.pth"))
    )


def test_the_padded_vocabulary_is_trimmed(tmp_path):
    state = nanogpt_state(50_304, 32, 1, 64)
    torch.save(state, tmp_path / "final.pth")
    model = edgewise.load(tmp_path)
    assert model.config.vocab_size == 50_257
    torch.testing.assert_close(
        logits(model), nanogpt_logits(state, text(), 1)[..., :50_257], rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(
    "content",
    [
        {"model": [1, 2]},
        [1, 2, 3],
        {"transformer.wte.weight": torch.ones(5), "transformer.wpe.weight": torch.ones(5)},
        {"transformer.wte.weight": torch.ones(9, 64), "transformer.wpe.weight": torch.ones(9, 64)},
        {**nanogpt_state(20, 8, 1, 64), "transformer.h.x.ln_1.weight": torch.ones(64)},
        {"model": nanogpt_state(20, 8, 1, 64), "model_args": {"n_head": 7}},
        nanogpt_state(20, 8, 1, 48),
    ],
    ids=["list of weights", "list", "flat embedding", "no layers", "odd layer", "odd heads", "odd width"],
)
def test_a_pth_file_of_another_layout(content, tmp_path):
    torch.save(content, tmp_path / "final.pth")
    with pytest.raises(EdgewiseError, match=r"final\.pth"):
        edgewise.load(tmp_path)


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_truncated_pth_file(size, tmp_path):
    torch.save(nanogpt_state(20, 8, 1, 64), tmp_path / "final.pth")
    whole = (tmp_path / "final.pth").read_bytes()
    (tmp_path / "final.pth").write_bytes(whole[:size])
    with pytest.raises(EdgewiseError, match="is damaged"):
        edgewise.load(tmp_path)


def test_a_pth_file_cannot_run_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "trapped"),))

    torch.save({"transformer.wte.weight": Trap()}, tmp_path / "final.pth")
    with pytest.raises(EdgewiseError, match="not a plain state dict"):
        edgewise.load(tmp_path)
    assert not (tmp_path / "trapped").exists()


# --------------------------------------------------------------------------------------------------- bad input


@pytest.fixture
def folder(tmp_path):
    """A sound dense folder, to be damaged."""
    host("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def twin_folder(tmp_path):
    return edgewise.save(trained_twin(), tmp_path / "twin")


def test_no_such_path():
    with pytest.raises(EdgewiseError, match=r"no model at \./nowhere/model"):
        edgewise.load("./nowhere/model")


def test_no_such_name_offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EdgewiseError, match=r"the hub cannot be reached; offline there are: pocket"):
        edgewise.load("no-one/no-model")


def test_an_empty_folder(tmp_path):
    with pytest.raises(EdgewiseError, match=r"no config\.json"):
        edgewise.load(tmp_path)


def test_a_file_instead_of_a_folder(folder, twin_folder):
    with pytest.raises(EdgewiseError, match="give a folder"):
        edgewise.load(folder / "config.json")
    with pytest.raises(EdgewiseError, match="is a file"):
        edgewise.save(trained_twin(), folder / "config.json")


def test_missing_weights(folder, twin_folder):
    (folder / "model.safetensors").unlink()
    (twin_folder / "twin.safetensors").unlink()
    with pytest.raises(EdgewiseError, match=r"model\.safetensors"):
        edgewise.load(folder)
    with pytest.raises(EdgewiseError, match=r"twin\.safetensors is missing"):
        edgewise.load(twin_folder)


@pytest.mark.parametrize("keep", [0, 4, 5000], ids=["empty", "headless", "half"])
def test_truncated_weights(folder, twin_folder, keep):
    for file in (folder / "model.safetensors", twin_folder / "twin.safetensors"):
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(EdgewiseError, match="truncated or damaged"):
            edgewise.load(file.parent)
        with pytest.raises(EdgewiseError, match="truncated or damaged"):
            edgewise.info(file.parent)


def test_weights_of_another_model(folder, tmp_path):
    host("gpt2").save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(EdgewiseError, match=r"lacks \d+ weights"):
        edgewise.load(folder)


def test_nan_weights(tmp_path):
    model = host("gpt2")
    with torch.no_grad():
        dict(model.named_parameters())["transformer.h.1.mlp.c_fc.weight"][0, 0] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(EdgewiseError, match=r"h\.1\.mlp\.c_fc\.weight holds NaN"):
        edgewise.load(tmp_path)
    twin = trained_twin()
    with torch.no_grad():
        gates_of(twin)[2].b[1] = torch.inf
    edgewise.save(twin, tmp_path / "twin")
    with pytest.raises(EdgewiseError, match=r"edge_gate\.b holds NaN or infinity"):
        edgewise.load(tmp_path / "twin")


def test_a_broken_config(folder):
    (folder / "config.json").write_text("{ not json")
    with pytest.raises(EdgewiseError, match="cannot be read as JSON"):
        edgewise.load(folder)
    (folder / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(EdgewiseError, match="no model of type 'no-such-model'"):
        edgewise.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "abc"},
        {"num_attention_heads": 0},
        {"dtype": "float99"},
        {"architectures": 5},
        {"hidden_act": "none"},
    ],
    ids=str,
)
def test_a_config_with_a_senseless_field(folder, change):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(EdgewiseError):
        edgewise.load(folder)


def test_a_missing_shard_and_a_damaged_index(folder):
    model = host("llama")
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    index = folder / "model.safetensors.index.json"
    next(folder.glob("model-*.safetensors")).unlink()
    for look in (edgewise.info, edgewise.load):
        with pytest.raises(EdgewiseError, match=r"model-0"):
            look(folder)
    index.write_text("{")
    for look in (edgewise.info, edgewise.load):
        with pytest.raises(EdgewiseError):
            look(folder)


@pytest.mark.parametrize("name", ["~no-such-user/x", "x" * 5000, "a\0b"], ids=["user", "long", "null"])
def test_names_that_no_file_system_takes(name):
    with pytest.raises(EdgewiseError, match="no model at"):
        edgewise.load(name)


def test_a_twin_with_a_damaged_or_newer_gate(twin_folder):
    config = json.loads((twin_folder / "config.json").read_text())
    for change, message in (
        ({"format": FORMAT + 1}, "newer edgewise"),
        ({"format": FORMAT - 1}, "older edgewise"),
        ({"gate": {**config["edgewise"]["gate"], "kind": "soft"}}, "unknown gate 'soft'"),
        ({"gate": {}}, "describes no gate"),
        ({"host": 5}, "describes no gate and host"),
    ):
        (twin_folder / "config.json").write_text(
            json.dumps({**config, "edgewise": {**config["edgewise"], **change}})
        )
        with pytest.raises(EdgewiseError, match=message):
            edgewise.load(twin_folder)
    for nonsense in (None, "gate", [1]):
        (twin_folder / "config.json").write_text(json.dumps({**config, "edgewise": nonsense}))
        with pytest.raises(EdgewiseError, match="describes no gate"):
            edgewise.load(twin_folder)
    (twin_folder / "config.json").write_text(json.dumps(config))
    state = load_file(twin_folder / "twin.safetensors")
    save_file(
        {key: x for key, x in state.items() if "layers.1.self_attn.edge_gate" not in key},
        twin_folder / "twin.safetensors",
    )
    with pytest.raises(EdgewiseError, match=r"lacks model\.layers\.1\.self_attn\.edge_gate\.b"):
        edgewise.load(twin_folder)
    with pytest.raises(EdgewiseError, match="the gates' parameters are not those"):
        edgewise.load(twin_folder, verify=False)


def test_encoders_and_encoder_decoders(tmp_path):
    t5 = T5Config(vocab_size=60, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8)
    bert = BertConfig(
        vocab_size=60, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    T5ForConditionalGeneration(t5).save_pretrained(tmp_path / "t5")
    BertForMaskedLM(bert).save_pretrained(tmp_path / "bert")
    with pytest.raises(EdgewiseError, match="encoder-decoder"):
        edgewise.load(tmp_path / "t5")
    with pytest.raises(EdgewiseError, match="an encoder"):
        edgewise.load(tmp_path / "bert")


def test_a_folder_without_tokenizer(folder, twin_folder):
    for model in (folder, twin_folder):
        with pytest.raises(EdgewiseError, match="no tokenizer"):
            edgewise.load_tokenizer(model)
    (twin_folder / "config.json").write_text('{"edgewise": null}')
    with pytest.raises(EdgewiseError, match="describes no gate"):
        edgewise.load_tokenizer(twin_folder)
