"""Sparse twins as transformers' auto classes see them: `AutoModelForCausalLM.from_pretrained` opens a twin gated.

`auto_hook` imports this module in the middle of an import of transformers, when its auto classes are there but other modules
may be half imported. So nothing but transformers' configs is imported at the top.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

from transformers.configuration_utils import PretrainedConfig

from edgewise.core.errors import EdgewiseError
from edgewise.models.twin_format import TWIN_TYPE

_ADDED_BY_AUTO_CLASSES = {"config", "trust_remote_code", "code_revision", "adapter_kwargs"}


class SparseTwinConfig(PretrainedConfig):
    """The config class under which the auto classes find a twin."""

    model_type = TWIN_TYPE


class SparseTwinForCausalLM:
    """Never instantiated: `from_pretrained` gives the host's own class, gated."""

    config_class = SparseTwinConfig

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a twin with its gates on; options that `edgewise.load` does not know are refused."""
        dtype = kwargs.pop("dtype", kwargs.pop("torch_dtype", None))
        if isinstance(dtype, str):
            dtype = None if dtype == "auto" else getattr(import_module("torch"), dtype)
        unknown = [
            key
            for key, value in kwargs.items()
            if value and key not in _ADDED_BY_AUTO_CLASSES and not key.startswith("_")
        ]
        if unknown:
            raise EdgewiseError(
                f"a sparse twin is opened without {', '.join(sorted(unknown))}; use edgewise.load"
            )
        return import_module("edgewise.models.load").load(pretrained_model_name_or_path, dtype=dtype)


def register_config(configuration_auto: ModuleType) -> None:
    """Make twins known to `AutoConfig`."""
    configuration_auto.AutoConfig.register(TWIN_TYPE, SparseTwinConfig, exist_ok=True)


def register_model(modeling_auto: ModuleType) -> None:
    """Make twins known to `AutoModelForCausalLM`."""
    modeling_auto.AutoModelForCausalLM.register(SparseTwinConfig, SparseTwinForCausalLM, exist_ok=True)
