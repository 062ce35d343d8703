"""Write models to folders: dense models as transformers does, twins so that they cannot be opened without their gates."""

import json
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.core.files import exists
from edgewise.gating.edge_gate import gate_config, kept_heads
from edgewise.models.card import carry_run, write_card
from edgewise.models.twin_folder import write_twin_folder
from edgewise.models.twin_format import CONFIG, WEIGHTS, WEIGHTS_FILE, twin_config

_VARIANT = "edgewise-twin"
_saving_twin: ContextVar[bool] = ContextVar("saving_twin", default=False)


def save(model: PreTrainedModel, path: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> Path:
    """Write config, gate and weights to a folder, and the tokenizer if given. Reloading gives identical logits."""
    path = Path(path)
    if exists(path) and not path.is_dir():
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
    """Stand in for `save_pretrained` on a gated model. A twin that was in the folder stays whole until this one is."""
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
    write_twin_folder(folder, WEIGHTS, partial(_write_twin, model, kwargs))
    _write_card(model, folder)


def _write_card(model: PreTrainedModel, folder: Path) -> None:
    """The model card: with the figures of the run that made the twin, where it was loaded from the folder of that run."""
    source = str(model.config.name_or_path or "")
    is_twin = bool(source) and bool([*Path(source).glob("twin*.safetensors")])
    if is_twin:
        carry_run(Path(source), folder)
    write_card(folder, base=None if is_twin else source)


def refuse_to_save_dense(is_main_process: bool = True) -> bool:
    """Stand in for `should_save_on_this_rank` on a twin and the models inside it: transformers' own `save_pretrained`, which
    asks it before it writes anything, would write a dense model."""
    if not _saving_twin.get():
        raise EdgewiseError(
            "this is a sparse twin or a part of one, which transformers would save as a dense model; save the twin with "
            "edgewise.save(twin, folder) or twin.save_pretrained(folder)"
        )
    return is_main_process


def _write_twin(model: PreTrainedModel, kwargs: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Have transformers write weights and config, under names that it does not open."""
    kept = kept_heads(model)
    if kept is not None:  # it is read back without transformers, whose older names it does not know
        kwargs = {**kwargs, "save_original_format": False}
    token = _saving_twin.set(True)
    try:
        PreTrainedModel.save_pretrained(model, folder, **{**kwargs, "variant": _VARIANT})
    finally:
        _saving_twin.reset(token)
    host = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).unlink()
    index = folder / f"model.safetensors.index.{_VARIANT}.json"
    if index.is_file():
        text = index.read_text().replace(f'"model.{_VARIANT}-', f'"{WEIGHTS}-')
        (folder / f"{WEIGHTS_FILE}.index.json").write_text(text)
        index.unlink()
    for weights in sorted(folder.glob(f"model.{_VARIANT}*.safetensors")):
        weights.rename(folder / weights.name.replace(f"model.{_VARIANT}", WEIGHTS, 1))
    gate = gate_config(model)
    assert gate is not None
    return twin_config(gate, host, kept)
