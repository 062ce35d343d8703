"""Loading and saving: dense hosts, sparse twins, and the layout of the paper's authors.

A sparse twin read without its gates is another model: dense, and quietly wrong. So a twin's folder cannot be opened
that way. Its weights are in `twin*.safetensors`, which transformers does not look for, and its `model_type` is a
sentence, which transformers quotes when it refuses. Once this module is imported (by any use of `edgewise`),
transformers' auto classes open it gated.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.gating.config import GateConfig
from edgewise.gating.edge_gate import gate_config, gates_of
from edgewise.gating.install import install
from edgewise.models import find as sources
from edgewise.models import lora as adapters
from edgewise.models.host import (
    GATE_KEY,
    NEWEST_FORMAT,
    TWIN_KEY,
    check_finite,
    complete,
    host_class,
    host_config,
    load_host,
    read_file,
)
from edgewise.models.nanogpt import load_nanogpt

TWIN_TYPE = "sparse twin (pip install edgewise, then open it with edgewise.load)"


def load(
    name: str | Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """A model by shipped name, folder or hub name: a dense host, or a sparse twin with its gates on. In eval mode.

    >>> model = edgewise.load("gpt2")          # dense, from the hub
    >>> twin = edgewise.load("runs/my-twin")   # sparse, saved by edgewise.save
    """
    found = sources.find(name)
    if found.config is None:
        path = found.file(sources.AUTHORS_FILE)
        assert path is not None
        model = gate(load_nanogpt(path), GateConfig("score", b=0.0))
        if dtype is not None:
            model = model.to(dtype)  # pyright: ignore
    elif TWIN_KEY in found.config:
        model = _load_twin(found, dtype)
    else:
        model = install(load_host(found, dtype))
    return (model if device is None else model.to(device)).eval()  # pyright: ignore


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to a model, by the same names as `load`."""
    found = sources.find(name)
    if found.config is None:  # the authors ship none: theirs is GPT-2's
        return load_tokenizer("gpt2")
    host = read_gate(found.name, found.config)[1] if TWIN_KEY in found.config else found.config
    config = host_config(host, found.name)
    try:
        return AutoTokenizer.from_pretrained(found.address, config=config)
    except Exception as error:  # somebody else's files: anything can be wrong with them
        raise EdgewiseError(
            f"{found.name} has no tokenizer that can be loaded: {first_line(error)}"
        ) from error


def shared_tokenizer(models: Sequence[str | Path | PreTrainedModel]) -> PreTrainedTokenizerBase:
    """The one tokenizer of models that are to be compared, by their names."""
    names = [model for model in models if isinstance(model, str | Path)]
    if len(names) != len(models):
        raise EdgewiseError(
            "with loaded models, bring their tokenizer: tokenizer=edgewise.load_tokenizer(...)"
        )
    first, *others = (load_tokenizer(name) for name in names)
    for name, other in zip(names[1:], others, strict=True):
        if other.get_vocab() != first.get_vocab():
            raise EdgewiseError(
                f"{names[0]} and {name} have different tokenizers: they read different tokens and cannot be compared"
            )
    return first


def name_of(model: str | PreTrainedModel, place: int) -> str:
    """What a model is called in results: as it was asked for, or what a loaded one says of itself."""
    return model if isinstance(model, str) else model.config.name_or_path or f"model {place + 1}"


def gate(model: PreTrainedModel, config: GateConfig | None = None) -> PreTrainedModel:
    """Give a dense host gates, in place: an untrained twin. `save_pretrained` and `push_to_hub` then write a twin."""
    install(model, config or GateConfig())
    # on the instance, because its class belongs to transformers; deepcopy and pickle carry a partial along
    model.save_pretrained = partial(_save_twin, model)  # pyright: ignore
    return model


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


# ------------------------------------------------------------------------------------------------------------ twins


def _save_twin(model: PreTrainedModel, save_directory: str | Path, **kwargs: Any) -> None:
    """Stands in for `save_pretrained` on a gated model. The config is written last: no config, no model."""
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
        written = Path(scratch)
        for weights in sorted(written.glob("model*.safetensors*")):
            if weights.suffix == ".json":  # the index of a model in several files
                weights.write_text(weights.read_text().replace('"model-', '"twin-'))
            weights.rename(weights.with_name(weights.name.replace("model", "twin", 1)))
        host = json.loads((written / "config.json").read_text())
        config = gate_config(model)
        assert config is not None
        twin = {
            "model_type": TWIN_TYPE,
            "architectures": host.get("architectures"),
            TWIN_KEY: {**_described(config), "host": host},
        }
        for stale in [*folder.glob("twin*.safetensors*"), folder / "config.json"]:
            stale.unlink(missing_ok=True)
        (written / "config.json").write_text(json.dumps(twin, indent=2) + "\n")
        for file in sorted(written.iterdir(), key=lambda f: f.name == "config.json"):
            shutil.move(file, folder / file.name)


def _described(gate: GateConfig) -> dict[str, Any]:
    described = asdict(gate)
    for number, (added, usual) in ((3, ("null_value", False)), (2, ("sinks", True))):
        if described[added] != usual:
            return {"format": number, "gate": described}
        del described[added]
    return {"format": 1, "gate": described}


def read_gate(name: str, config: dict[str, Any]) -> tuple[GateConfig, dict[str, Any]]:
    """A twin's gate and its host's config, from its config.json."""
    part = config[TWIN_KEY]
    if isinstance(part, dict) and part.get("format", NEWEST_FORMAT) not in range(1, NEWEST_FORMAT + 1):
        raise EdgewiseError(
            f"{name} was written by a newer edgewise (format {part['format']}); upgrade with pip"
        )
    try:
        kind, b, host = str(part["gate"]["kind"]), float(part["gate"]["b"]), dict(part["host"])
        sinks, null_value = bool(part["gate"].get("sinks", True)), bool(part["gate"].get("null_value", False))
    except (KeyError, TypeError, ValueError) as error:
        raise EdgewiseError(
            f"{name}: config.json describes no gate and host; the folder is damaged"
        ) from error
    return GateConfig(kind, b, sinks, null_value), host


def _load_twin(found: sources.Source, dtype: torch.dtype | None) -> PreTrainedModel:
    assert found.config is not None
    config, host = read_gate(found.name, found.config)
    folder = found.whole_folder()
    described = found.config[TWIN_KEY].get(adapters.ADAPTERS_KEY)
    if described is None:
        state = read_weights(found.name, folder)
        offsets = {key: state.pop(key) for key in list(state) if GATE_KEY in key}
        typed = host_config(host, found.name)
        model = complete(found.name, host_class(typed), None, dtype, config=typed, state_dict=state)
    else:
        model, offsets = adapters.changed_base(found.name, folder, described)
        model = model if dtype is None else model.to(dtype)  # pyright: ignore
    model.name_or_path = model.config.name_or_path = found.address
    gate(model, config)
    if {key for key in model.state_dict() if GATE_KEY in key} != offsets.keys():
        raise EdgewiseError(
            f"{found.name}: what belongs to the gates is not that of {len(gates_of(model))} layers; the folder is damaged"
        )
    check_finite(found.name, offsets)
    model.load_state_dict(offsets, strict=False)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def listed_files(name: str, folder: Path, single: str) -> list[Path]:
    """The one weight file, or those that its index lists; none may be missing."""
    index = folder / f"{single}.index.json"
    try:
        names = (
            sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else [single]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EdgewiseError(f"{name}: {index.name} is damaged; copy or download it again") from error
    for file in names:
        if not (folder / file).is_file():
            raise EdgewiseError(f"{name}: {file} is missing from the folder")
    return [folder / file for file in names]


def read_weights(name: str, folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for file in listed_files(name, folder, "twin.safetensors"):
        state |= read_file(name, file)
    return state


class SparseTwinConfig(PretrainedConfig):
    """Lets transformers' auto classes find a twin once edgewise is imported."""

    model_type = TWIN_TYPE


class SparseTwinForCausalLM(PreTrainedModel):
    """Never instantiated: `from_pretrained` gives the host's own class, gated."""

    config_class = SparseTwinConfig

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any
    ) -> PreTrainedModel:  # pyright: ignore
        dtype = kwargs.pop("dtype", kwargs.pop("torch_dtype", None))
        if isinstance(dtype, str):
            dtype = None if dtype == "auto" else getattr(torch, dtype)
        # what the auto classes add
        ignored = {"config", "trust_remote_code", "code_revision", "adapter_kwargs"}
        asked = [
            key for key, value in kwargs.items() if value and key not in ignored and not key.startswith("_")
        ]
        if asked:
            raise EdgewiseError(
                f"a sparse twin is opened without {', '.join(sorted(asked))}; use edgewise.load"
            )
        return load(pretrained_model_name_or_path, dtype=dtype)


AutoConfig.register(TWIN_TYPE, SparseTwinConfig)
AutoModelForCausalLM.register(SparseTwinConfig, SparseTwinForCausalLM)
