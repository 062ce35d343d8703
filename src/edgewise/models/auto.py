"""Sparse twins as transformers' auto classes see them: `AutoModelForCausalLM.from_pretrained` opens a twin gated.

`auto_hook` imports this module in the middle of an import of transformers, when its auto classes are there but other modules
may be half imported. So nothing but transformers' configs is imported at the top.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from transformers.configuration_utils import PretrainedConfig

from edgewise.models.twin_format import ARCHITECTURE, TWIN_KEY, TWIN_TYPE

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_NOT_OF_THE_HOST = {
    "_name_or_path", "architectures", "attn_implementation", "dtype", "model_type", "transformers_version", TWIN_KEY,
}  # fmt: skip


class SparseTwinConfig(PretrainedConfig):
    """The config class under which the auto classes find a twin. Reads like the config of the twin's host."""

    model_type = TWIN_TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Without the host's class: what chooses by `architectures`, such as vLLM, would run the host, dense."""
        return super().from_dict({**config_dict, "architectures": [ARCHITECTURE]}, **kwargs)

    def __getattr__(self, name: str) -> Any:
        twin = self.__dict__.get(TWIN_KEY)
        if name.startswith("_") or not isinstance(twin, dict):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        auto = import_module("transformers.models.auto.configuration_auto")
        return getattr(auto.AutoConfig.for_model(**twin["host"]), name)

    def changes(self) -> dict[str, Any]:
        """What was set on this config after it was read: options such as `use_cache=False` given to `from_pretrained`."""
        defaults = vars(type(self)())
        return {
            key: value
            for key, value in vars(self).items()
            if key not in _NOT_OF_THE_HOST and (key not in defaults or defaults[key] != value)
        }


class SparseTwin:
    """Open, save and publish sparse twins, as an auto class of transformers does: never instantiated.

    >>> twin = edgewise.SparseTwin.from_pretrained("user/gpt2-sparse", revision="main", device_map="auto")
    >>> twin.save_pretrained("runs/copy")
    >>> twin.push_to_hub("user/another-name")

    A twin is a model of its host's own class (`GPT2LMHeadModel`, ...) with gates: what takes such a model takes the twin.
    After `import edgewise`, `AutoModelForCausalLM.from_pretrained` opens twins with the same arguments.
    """

    config_class = SparseTwinConfig

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> "PreTrainedModel":
        """Load a twin with its gates on, by folder, embedded name or hub name, with the arguments of a dense model:
        `revision`, `dtype`, `device_map`, `token`, `cache_dir`, `local_files_only`, `quantization_config`, ...
        """
        kwargs.pop("_from_auto", None)
        return import_module("edgewise.models.from_pretrained").open_twin(
            pretrained_model_name_or_path, **kwargs
        )

    @staticmethod
    def save_pretrained(
        model: "PreTrainedModel", path: str | Path, tokenizer: "PreTrainedTokenizerBase | None" = None
    ) -> Path:
        """Write a twin to a folder, and the tokenizer if given: the same as `edgewise.save`, for twins only."""
        return import_module("edgewise.models.from_pretrained").save_twin_to(model, path, tokenizer)

    @staticmethod
    def push_to_hub(model: "PreTrainedModel", repo_id: str, **kwargs: Any) -> str:
        """Upload a twin with its model card; takes what `push_to_hub` of a dense model takes, and `tokenizer`."""
        return import_module("edgewise.models.from_pretrained").push_twin_to(model, repo_id, **kwargs)

    @classmethod
    def _from_config(cls, config: SparseTwinConfig, **kwargs: Any) -> "PreTrainedModel":
        """An untrained twin of the same sizes and gate, as `AutoModelForCausalLM.from_config` asks for."""
        return import_module("edgewise.models.from_pretrained").twin_from_config(config, **kwargs)


def register_config(configuration_auto: ModuleType) -> None:
    """Make twins known to `AutoConfig`."""
    configuration_auto.AutoConfig.register(TWIN_TYPE, SparseTwinConfig, exist_ok=True)


def register_model(modeling_auto: ModuleType) -> None:
    """Make twins known to `AutoModelForCausalLM`."""
    modeling_auto.AutoModelForCausalLM.register(SparseTwinConfig, SparseTwin, exist_ok=True)
