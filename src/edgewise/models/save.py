"""Write models to folders: dense models as transformers does, twins so that they cannot be opened without their gates."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gate_config
from edgewise.models.twin_format import twin_config


def save(model: PreTrainedModel, path: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> Path:
    """Write config, gate and weights to a folder, and the tokenizer if given. Reloading gives identical logits."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise EdgewiseError(f"{path} is a file; give a folder to save to")
    if not isinstance(model, PreTrainedModel):
        raise EdgewiseError(
            f"{type(model).__name__} is a wrapper; save the model inside it (for LoRA: model.merge_and_unload())"
        )
    if gate_config(model) is None and list(path.glob("twin*.safetensors")):
        raise EdgewiseError(f"{path} holds a sparse twin; save the dense model to another folder")
    model.save_pretrained(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path


def save_twin(model: PreTrainedModel, save_directory: str | Path, **kwargs: Any) -> None:
    """Stand in for `save_pretrained` on a gated model. The config is written last: no config, no model."""
    if not kwargs.get("is_main_process", True):
        return
    if kwargs.get("push_to_hub") or kwargs.get("variant"):
        raise EdgewiseError(
            "a twin is saved as it is, without a variant; to publish it call model.push_to_hub(name)"
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise EdgewiseError("this twin carries an adapter; merge it into the weights before saving")
    folder = Path(save_directory)
    if [*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*")]:
        raise EdgewiseError(f"{folder} holds a dense model's weights; save the twin to another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as scratch:
        PreTrainedModel.save_pretrained(model, scratch, **kwargs)
        _make_twin_folder(Path(scratch), model)
        for stale in [*folder.glob("twin*.safetensors*"), folder / "config.json"]:
            stale.unlink(missing_ok=True)
        for file in sorted(Path(scratch).iterdir(), key=lambda file: file.name == "config.json"):
            shutil.move(file, folder / file.name)


def _make_twin_folder(folder: Path, model: PreTrainedModel) -> None:
    """Rename transformers' `model*.safetensors` to `twin*.safetensors`, and put the host's config into the twin's."""
    for weights in sorted(folder.glob("model*.safetensors*")):
        if weights.suffix == ".json":  # the index of the shards
            weights.write_text(weights.read_text().replace('"model-', '"twin-'))
        weights.rename(weights.with_name(weights.name.replace("model", "twin", 1)))
    gate = gate_config(model)
    assert gate is not None
    config = folder / "config.json"
    config.write_text(json.dumps(twin_config(gate, json.loads(config.read_text())), indent=2) + "\n")
