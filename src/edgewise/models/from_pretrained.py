"""What `SparseTwin` and the auto classes do: open twins with the arguments of a dense model's `from_pretrained`."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.gating.attention_interface import NAME
from edgewise.gating.edge_gate import gate_config
from edgewise.models.auto import SparseTwinConfig
from edgewise.models.find import ModelFiles, find_model
from edgewise.models.gate import gate
from edgewise.models.host import host_class, host_config
from edgewise.models.hub import HubOptions
from edgewise.models.load import load_files
from edgewise.models.save import save
from edgewise.models.twin_format import TWIN_KEY, read_gate

_WITHOUT_MEANING = {
    "trust_remote_code", "code_revision", "proxies", "weights_only", "use_safetensors", "low_cpu_mem_usage",
    "_from_pipeline", "_commit_hash",
}  # fmt: skip
_REFUSED = {
    "state_dict": "its weights come from its folder",
    "gguf_file": "no GGUF file holds gates",
    "variant": "a twin's folder holds one precision; use `dtype`",
    "key_mapping": "its weights have the host's names",
    "ignore_mismatched_sizes": "its weights are complete",
    "tp_plan": "a gate's thresholds are not sharded; use `device_map`",
    "tp_size": "a gate's thresholds are not sharded; use `device_map`",
    "distributed_config": "a gate's thresholds are not sharded; use `device_map`",
    "device_mesh": "a gate's thresholds are not sharded; use `device_map`",
}


def open_twin(name: str | Path, **kwargs: Any) -> PreTrainedModel | tuple[PreTrainedModel, dict[str, Any]]:
    """A twin by folder, embedded name or hub name; with `output_loading_info` also what was missing: nothing."""
    for key, reason in _REFUSED.items():
        if kwargs.pop(key, None):
            raise EdgewiseError(f"a sparse twin is opened without `{key}`: {reason}")
    kwargs = {key: value for key, value in kwargs.items() if key not in _WITHOUT_MEANING}
    config, legacy_dtype = kwargs.pop("config", None), kwargs.pop("torch_dtype", None)
    dtype = kwargs.pop("dtype", None) or legacy_dtype
    generation_config = kwargs.pop("generation_config", None)
    wants_info = kwargs.pop("output_loading_info", False)
    adapter, adapter_name = kwargs.pop("adapter_kwargs", None) or {}, kwargs.pop("adapter_name", None)
    _check_attention(kwargs.pop("attn_implementation", None) or getattr(config, "_attn_implementation", None))
    options = {field.name: kwargs.pop(field.name) for field in fields(HubOptions) if field.name in kwargs}
    hub = HubOptions(**{key: value for key, value in options.items() if value is not None})
    files = _twin_files(name, hub)
    if isinstance(config, SparseTwinConfig):
        files = _with_changes(files, config.changes())
    placement = {key: value for key, value in kwargs.items() if value is not None and value != {}}
    model = load_files(files, dtype, **placement)
    _load_adapter(model, adapter, adapter_name)
    if generation_config is not None:
        model.generation_config = generation_config
    # what is missing or does not fit has been refused
    complete = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}
    return (model, complete) if wants_info else model


def _load_adapter(model: PreTrainedModel, adapter: dict[str, Any], name: str | None) -> None:
    """Put the PEFT adapter on a twin whose folder or repository the auto classes were given in place of the twin's own."""
    options = dict(adapter)
    if (source := options.pop("_adapter_model_path", None)) is None:
        return
    try:
        model.load_adapter(str(source), adapter_name=name, adapter_kwargs=options)
    except Exception as error:  # somebody else's files: anything can be wrong with them
        raise EdgewiseError(f"the adapter {source} cannot be put on its twin: {first_line(error)}") from error
    model.eval()


def twin_from_config(config: SparseTwinConfig, **kwargs: Any) -> PreTrainedModel:
    """An untrained twin of the sizes and the gate of a config."""
    _check_attention(kwargs.pop("attn_implementation", None))
    gate_of_twin, host = read_gate("the config", {TWIN_KEY: getattr(config, TWIN_KEY)})
    typed = host_config(host | config.changes(), "the config")
    return gate(host_class(typed)._from_config(typed, **kwargs), gate_of_twin)


def save_twin_to(
    model: PreTrainedModel, path: str | Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> Path:
    """Save a twin, and nothing but a twin."""
    _check_gated(model)
    return save(model, path, tokenizer)


def push_twin_to(model: PreTrainedModel, repo_id: str, **kwargs: Any) -> str:
    """Upload a twin, and nothing but a twin."""
    _check_gated(model)
    return str(model.push_to_hub(repo_id, **kwargs))  # pyright: ignore


def _twin_files(name: str | Path, hub: HubOptions) -> ModelFiles:
    files = find_model(name, hub)
    if files.config is not None and TWIN_KEY not in files.config:
        raise EdgewiseError(
            f"{name} is a dense model: open it with edgewise.load, or make a twin of it with edgewise.sparsify"
        )
    return files


def _with_changes(files: ModelFiles, changes: dict[str, Any]) -> ModelFiles:
    """The files, their host's config changed by what the caller has set."""
    if not changes or files.config is None:
        return files
    twin = files.config[TWIN_KEY]
    return replace(files, config={**files.config, TWIN_KEY: {**twin, "host": {**twin["host"], **changes}}})


def _check_attention(implementation: str | None) -> None:
    if implementation not in (None, NAME):
        raise EdgewiseError(
            f"a sparse twin computes attention by its gates; leave out `attn_implementation` {implementation!r}"
        )


def _check_gated(model: PreTrainedModel) -> None:
    if not isinstance(model, PreTrainedModel) or gate_config(model) is None:
        raise EdgewiseError("this model is dense: it has no gates; make a twin of it with edgewise.gate")
