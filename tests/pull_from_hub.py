"""A session with the stand-in of the hub at HF_ENDPOINT: publishes twins, opens them in every way, prints what it saw.

python pull_from_hub.py FOLDER     the last line is JSON: a name for each way -> the sum of the logits, or an error
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hosts import host, text
from huggingface_hub import HfApi
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
see("no transcoder", lambda: edgewise.Transcoder.from_pretrained(NAME, model=twin).layers)
see("pushed without a right to", lambda: model.push_to_hub(NAME, token="hf_wrong"))
PROMPT = 'The opposite of " large " is "'
see("tokenizer", lambda: AutoTokenizer.from_pretrained("someone/pocket-sparse")(PROMPT)["input_ids"])
generate = pipeline("text-generation", model="someone/pocket-sparse")
see("pipeline", lambda: generate(PROMPT, max_new_tokens=1, return_full_text=False)[0]["generated_text"])
print(json.dumps(seen))
