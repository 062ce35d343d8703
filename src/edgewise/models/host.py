"""Dense models, the hosts of gates: causal language models of transformers, loaded completely or refused with a reason."""

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils.logging import get_verbosity, set_verbosity

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models.empty import check_sizes, weights_in
from edgewise.models.find import ModelFiles
from edgewise.models.twin_format import GATE_KEY
from edgewise.models.weights import check_finite

MAX_LAYERS = 4096
"""Building millions of layers would take hours."""
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def host_config(config: dict[str, Any], name: str) -> PretrainedConfig:
    """The typed config of a causal model, from its JSON."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise EdgewiseError(
            f"{name}: this transformers knows no model of type {kind!r}; upgrading it may help"
        )
    for sizes in (config, config.get("text_config")):
        layers = (
            max((_whole(sizes.get(key)) for key in _LAYER_KEYS), default=0) if isinstance(sizes, dict) else 0
        )
        if layers > MAX_LAYERS:
            raise EdgewiseError(
                f"{name}: config.json says {layers:,} layers; more than {MAX_LAYERS:,} are taken for damage"
            )
    try:
        typed = AutoConfig.for_model(**config)
        architecture = str(next(iter(config.get("architectures") or []), ""))
        if typed.dtype is not None and not isinstance(typed.dtype, torch.dtype):
            raise ValueError(f"dtype {config.get('dtype')!r} is not one of torch's")
    except Exception as error:  # a config can be wrong in as many ways as there are fields
        raise EdgewiseError(
            f"{name}: config.json does not describe a {kind} model: {first_line(error)}"
        ) from error
    if typed.is_encoder_decoder:
        raise EdgewiseError(
            f"{name} is an encoder-decoder ({kind}); edgewise needs a decoder-only language model"
        )
    if type(typed) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise EdgewiseError(f"{name} ({kind}) is not a causal language model; edgewise needs a decoder")
    if architecture.endswith(("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")):
        raise EdgewiseError(f"{name} is a {architecture}, an encoder; edgewise needs a causal language model")
    return typed


def dtype_of_config(config: PretrainedConfig) -> torch.dtype:
    """The precision of a checkpoint, by a config that `host_config` has read."""
    assert not isinstance(config.dtype, str)
    return config.dtype or torch.float32


def host_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The causal model class of a config."""
    classes: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return classes[0] if isinstance(classes, tuple | list) else classes


def load_host(files: ModelFiles, dtype: torch.dtype | str | None = None, **placement: Any) -> PreTrainedModel:
    """Load a dense model from hub or disk, complete and finite. `placement` goes to `from_pretrained`."""
    config = host_config(files.config or {}, files.name)
    check_sizes(config, files.name, None if files.folder is None else weights_in(files.name, files.folder))
    hub = files.hub.download if files.folder is None else {}
    if files.folder is None and files.hub.subfolder:
        hub["subfolder"] = files.hub.subfolder
    return load_complete(files.name, AutoModelForCausalLM, files.address, dtype, **hub, **placement)


def load_complete(
    name: str, cls: Any, address: str | None, dtype: torch.dtype | str | None, **kwargs: Any
) -> PreTrainedModel:
    """Call `from_pretrained`, refusing what it would only warn about: missing, misshapen or damaged weights."""
    if dtype is not None:
        kwargs["dtype"] = dtype
    try:
        with _no_report():
            model, report = cls.from_pretrained(
                address, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
    except (SafetensorError, EOFError, pickle.UnpicklingError) as error:
        raise EdgewiseError(
            f"{name}: a weight file is truncated or damaged ({first_line(error)}); download or copy it again"
        ) from error
    except Exception as error:  # somebody else's files: anything can be wrong with them
        raise EdgewiseError(f"{name} cannot be loaded: {first_line(error)}") from error
    _check_complete(name, report)
    in_memory = {key: weight for key, weight in model.named_parameters() if not weight.is_meta}
    check_finite(name, in_memory)
    return model


@contextmanager
def _no_report() -> Iterator[None]:
    """Without the table that transformers prints of what is missing, misshapen or too much: that is refused, or needless."""
    before = get_verbosity()
    set_verbosity(max(before, logging.ERROR))
    try:
        yield
    finally:
        set_verbosity(before)


def _check_complete(name: str, report: dict[str, Any]) -> None:
    if any(GATE_KEY in key for key in report["unexpected_keys"]):
        raise EdgewiseError(
            f"{name} holds a sparse twin's weights under a dense config; write it with edgewise.save"
        )
    if report["mismatched_keys"]:
        key, saved, configured = min(report["mismatched_keys"])
        raise EdgewiseError(
            f"{name}: config.json asks for {key} of {list(configured)}, and the checkpoint has it as {list(saved)}; "
            "one of them is another model's, or damaged"
        )
    if missing := sorted(report["missing_keys"]):
        raise EdgewiseError(
            f"{name}: the checkpoint lacks {len(missing)} weights, {missing[0]} among them; is a file missing?"
        )
