"""Dense hosts: causal language models of transformers, loaded whole or refused with a reason."""

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models.find import Source, hub_answers

GATE_KEY = ".edge_gate."
"""In the name of every weight that makes a twin of a host."""
TWIN_KEY = "edgewise"
"""The part of config.json that makes it a twin's."""
NEWEST_FORMAT = 3
"""Of what is written there. Each twin is written in the first format that can express it, so that older versions
read it: 2 has gates without sinks, 3 gates with a value of attending to nothing, and adapters."""


def host_config(config: dict[str, Any], name: str) -> PretrainedConfig:
    """The typed config of a causal model, from its JSON."""
    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise EdgewiseError(
            f"{name}: this transformers knows no model of type {kind!r}; upgrading it may help"
        )
    try:
        typed = AutoConfig.for_model(**config)
        architecture = str(next(iter(config.get("architectures") or []), ""))
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


def host_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The causal model class of a config."""
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple | list) else found


def load_host(source: Source, dtype: torch.dtype | None) -> PreTrainedModel:
    """A dense model from hub or disk, complete and finite."""
    host_config(source.config or {}, source.name)
    offline = source.folder is None and not hub_answers()
    return complete(source.name, AutoModelForCausalLM, source.address, dtype, local_files_only=offline)


def complete(
    name: str, cls: Any, address: str | None, dtype: torch.dtype | None, **kwargs: Any
) -> PreTrainedModel:
    """`from_pretrained`, refusing what it would only warn about: missing, misshapen or damaged weights."""
    if dtype is not None:
        kwargs["dtype"] = dtype
    try:
        model, report = cls.from_pretrained(address, output_loading_info=True, **kwargs)
    except (SafetensorError, EOFError, pickle.UnpicklingError) as error:
        raise EdgewiseError(
            f"{name}: a weight file is truncated or damaged ({first_line(error)}); download or copy it again"
        ) from error
    except Exception as error:  # somebody else's files: anything can be wrong with them
        raise EdgewiseError(f"{name} cannot be loaded: {first_line(error)}") from error
    if any(GATE_KEY in key for key in report["unexpected_keys"]):
        raise EdgewiseError(
            f"{name} holds a sparse twin's weights under a dense config; write it with edgewise.save"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise EdgewiseError(
            f"{name}: the checkpoint lacks {len(missing)} weights, {missing[0]} among them; is a file missing?"
        )
    check_finite(name, dict(model.named_parameters()))
    return model


def read_file(name: str, file: Path) -> dict[str, Tensor]:
    """The weights of one file of a model."""
    if not file.is_file():
        raise EdgewiseError(f"{name}: {file.name} is missing from the folder")
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise EdgewiseError(
            f"{name}: {file.name} is truncated or damaged ({error}); copy or download it again"
        ) from error


def check_finite(name: str, weights: dict[str, Tensor]) -> None:
    for key, weight in weights.items():
        if not torch.isfinite(weight).all():
            raise EdgewiseError(
                f"{name}: {key} holds NaN or infinity; the checkpoint is damaged or its training diverged"
            )
