"""A session with the stand-in of the hub at HF_ENDPOINT: publishes twins, opens them in every way, prints what it saw.

python pull_from_hub.py FOLDER     the last line is JSON: a name for each way -> the sum of the logits, or an error
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hosts import host, text
from huggingface_hub import HfApi, constants
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, pipeline

import edgewise
from edgewise.gating.edge_gate import gates_of
from edgewise.models.registry import embedded_models

folder = Path(sys.argv[1])
NAME = "someone/a-twin"
IDS = text()
seen: dict[str, Any] = {}


def total(model: Any) -> float:
    assert edgewise.gate_config(model) is not None and not model.training
    with torch.no_grad():
        return float(model(input_ids=IDS).logits.double().sum())


def see(name: str, action: Callable[[], Any]) -> None:
    try:
        seen[name] = action()
    except (edgewise.EdgewiseError, OSError) as error:  # ours, and those of the auto classes themselves
        seen[name] = str(error)


def opened(name: str, *args: Any, **kwargs: Any) -> None:
    see(f"auto, {name}", lambda: total(AutoModelForCausalLM.from_pretrained(*(args or (NAME,)), **kwargs)))
    see(
        f"SparseTwin, {name}",
        lambda: total(edgewise.SparseTwin.from_pretrained(*(args or (NAME,)), **kwargs)),
    )


model = edgewise.gate(host("llama"), edgewise.GateConfig("relative", 2.0)).eval()
seen["main"] = total(model)
model.push_to_hub(NAME)
with torch.no_grad():
    gates_of(model)[0].b.fill_(0.1)
seen["v2"] = total(model)
HfApi().create_branch(NAME, branch="v2")
edgewise.SparseTwin.push_to_hub(model, NAME, revision="v2")
model.save_pretrained(folder / "inner" / "twin")
HfApi().upload_folder(repo_id=NAME, folder_path=folder / "inner", revision="v2")

opened("by name")
opened("main", revision="main")
opened("v2", revision="v2")
opened("a revision that is not there", revision="v3")
opened("device_map", device_map="auto")
opened("cache_dir", cache_dir=folder / "cache")
opened("local_files_only", cache_dir=folder / "cache", local_files_only=True)
opened("local_files_only without a cache", cache_dir=folder / "empty", local_files_only=True)
opened("subfolder", revision="v2", subfolder="twin")
opened("force_download", force_download=True)
opened("token", token="hf_of_the_tests")
opened("trust_remote_code", trust_remote_code=True)
opened("no such repository", "someone/nothing")
opened("commit", revision=HfApi().model_info(NAME).sha)
together: dict[str, Any] = {
    "revision": "v2", "dtype": "float32", "device_map": "cpu", "token": os.environ["HF_TOKEN"], "cache_dir": folder / "all",
    "local_files_only": False, "use_safetensors": True, "low_cpu_mem_usage": True, "trust_remote_code": False,
}  # fmt: skip
opened("all together", **together)
opened("all together, offline", **together | {"local_files_only": True})
for opener in (AutoModelForCausalLM, edgewise.SparseTwin):
    see(
        f"{opener.__name__}, dtype",
        lambda opener=opener: str(opener.from_pretrained(NAME, dtype="bfloat16").dtype),
    )

model.push_to_hub("someone/private", private=True)
token = os.environ.pop("HF_TOKEN")  # huggingface_hub looks there at every call
opened("token of a private one", "someone/private", token=token, cache_dir=folder / "private")
opened("private without a token", "someone/private", cache_dir=folder / "refused")
os.environ["HF_TOKEN"] = token
opened("private by the environment's token", "someone/private", cache_dir=folder / "environment")
opened("private, token=False", "someone/private", token=False, cache_dir=folder / "refused")

see("edgewise.load", lambda: total(edgewise.load(NAME)))
see("config", lambda: AutoConfig.from_pretrained(NAME).num_hidden_layers)

twin = edgewise.load("pocket-sparse")
twin.push_to_hub("someone/pocket-sparse", tokenizer=edgewise.load_tokenizer("pocket-sparse"))
transcoder = edgewise.load_transcoder(embedded_models()["pocket-sparse"].folder / "transcoder", twin)
transcoder.push_to_hub("someone/transcoder", private=True)
pulled = edgewise.Transcoder.from_pretrained(
    "someone/transcoder", model=twin, cache_dir=folder / "transcoders"
)
seen["transcoder"] = max(
    float((a - b).abs().max()) for a, b in zip(pulled.parameters(), transcoder.parameters(), strict=True)
)
stored: Any = {"model": twin, "cache_dir": folder / "transcoders", "local_files_only": True}


def activations(pulled: edgewise.Transcoder) -> float:
    assert isinstance(pulled, edgewise.Transcoder) and not pulled.training
    return float(pulled.encoder.double().sum())


seen["encoder"] = activations(transcoder)
with torch.no_grad():
    changed = edgewise.Transcoder.from_pretrained("someone/transcoder", **stored)
    changed.encoder.mul_(2)
changed.push_to_hub("someone/transcoder", revision="twice")
changed.save_pretrained(folder / "transcoder")
pull = edgewise.Transcoder.from_pretrained
see("transcoder, local_files_only", lambda: activations(pull("someone/transcoder", **stored)))
see("transcoder, revision", lambda: activations(pull("someone/transcoder", revision="twice")))
see("transcoder, folder", lambda: activations(pull(folder / "transcoder", model=twin)))
see("transcoder, subfolder", lambda: activations(pull(folder, subfolder="transcoder")))
see("transcoder, no such revision", lambda: activations(pull("someone/transcoder", revision="v3")))
see(
    "transcoder, token=False",
    lambda: activations(pull("someone/transcoder", token=False, cache_dir=folder / "refused")),
)
see(
    "transcoder, dtype",
    lambda: str(pull(folder / "transcoder", dtype="bfloat16", device_map="auto").encoder.dtype),
)
see(
    "transcoder, two devices",
    lambda: str(pull(folder / "transcoder", device_map={"encoder": "cpu", "decoders": "cpu"})),
)
see("no transcoder", lambda: edgewise.Transcoder.from_pretrained(NAME, model=twin).layers)
see("pushed without a right to", lambda: model.push_to_hub(NAME, token="hf_wrong"))
PROMPT = 'The opposite of " large " is "'
see("tokenizer", lambda: AutoTokenizer.from_pretrained("someone/pocket-sparse")(PROMPT)["input_ids"])
generate = pipeline("text-generation", model="someone/pocket-sparse")
see("pipeline", lambda: generate(PROMPT, max_new_tokens=1, return_full_text=False)[0]["generated_text"])
options: Any = {
    "model": "someone/pocket-sparse",
    "revision": "main",
    "dtype": "bfloat16",
    "device_map": "cpu",
}
see("pipeline with options", lambda: str(pipeline("text-generation", **options).model.dtype))
constants.HF_HUB_OFFLINE = True
opened("offline", "someone/pocket-sparse")
see("edgewise.load, offline", lambda: total(edgewise.load(NAME)))
print(json.dumps(seen))
