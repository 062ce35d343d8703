"""A sparse twin as LoRA factors of its base model and the parameters of its gates: a fraction of the size of its weights.

The files are not named as peft names them: read by peft, the factors alone would make a dense model of a sparse one.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.schema import read_json
from edgewise.models.find import find_model
from edgewise.models.host import load_host
from edgewise.models.hub import HubOptions
from edgewise.models.twin_folder import write_twin_folder
from edgewise.models.twin_format import (
    ADAPTERS,
    ADAPTERS_FILE,
    ADAPTERS_KEY,
    CONFIG,
    GATE_KEY,
    MANIFEST_KEY,
    TWIN_KEY,
)
from edgewise.models.weights import check_finite, read_twin_weights

_A, _B = ".lora_A", ".lora_B"
_DIGEST_ELEMENTS = 64
"""Elements of each weight that the digest of a model reads."""


@dataclass(frozen=True)
class Adapters:
    """weight <- weight + scale * B @ A, for every pair of factors."""

    factors: dict[str, Tensor]  # <module>.lora_A [rank, in], <module>.lora_B [out, rank]
    scale: float

    @classmethod
    def of(cls, trained: Any) -> "Adapters":
        """The factors of a model that peft trains."""
        from peft import get_peft_model_state_dict  # an optional package

        scale = {c.lora_alpha / c.r for c in trained.peft_config.values()}
        factors = {
            key.removeprefix("base_model.model.").removesuffix(".weight"): value.detach().cpu()
            for key, value in get_peft_model_state_dict(trained, save_embedding_layers=False).items()
            if _A in key or _B in key
        }
        return cls(factors, scale.pop())

    @property
    def rank(self) -> int:
        return next(len(factor) for key, factor in self.factors.items() if key.endswith(_A))

    def load_into(self, trained: Any) -> None:
        """Let peft go on training these factors: the inverse of `of`."""
        from peft import set_peft_model_state_dict  # an optional package

        ours = Adapters.of(trained)
        if ours.scale != self.scale or ours.factors.keys() != self.factors.keys():
            raise EdgewiseError(
                "the adapters to start from are on other layers, or scaled otherwise: `attention_only` must be as it was"
            )
        state = {f"base_model.model.{key}.weight": value.float() for key, value in self.factors.items()}
        set_peft_model_state_dict(trained, state)

    @torch.no_grad()
    def merge_into(self, model: nn.Module) -> None:
        """Add the products of the factors to the model's weights, in place."""
        for key, a in self.factors.items():
            if key.endswith(_A):
                module = model.get_submodule(key.removesuffix(_A))
                b = self.factors[key.removesuffix(_A) + _B]
                change = self.scale * (b.float() @ a.float())  # they may be saved in half precision
                weight: Any = module.weight
                weight += change.T if isinstance(module, Conv1D) else change


def save_adapters(
    folder: Path,
    adapters: Adapters,
    twin_folder: Path,
    twin: PreTrainedModel,
    base: PreTrainedModel,
    name: str,
) -> None:
    """Write the twin whose weights are in `twin_folder` as factors of its base model, which is called `name`."""
    gate_state = {key: value.cpu() for key, value in twin.state_dict().items() if GATE_KEY in key}
    config = read_json(twin_folder / CONFIG)
    config[TWIN_KEY][ADAPTERS_KEY] = {
        "base": str(Path(name).expanduser().resolve()) if Path(name).expanduser().is_dir() else name,
        "dtype": str(base.dtype).removeprefix("torch."),
        "digest": digest(base),
        "scale": adapters.scale,
    }
    del config[TWIN_KEY][MANIFEST_KEY]

    def fill(scratch: Path) -> dict[str, Any]:
        save_file({**adapters.factors, **gate_state}, scratch / ADAPTERS_FILE)
        return config

    write_twin_folder(folder, ADAPTERS, fill)


def read_adapters(name: str | Path, dense: PreTrainedModel) -> Adapters:
    """The factors of a twin that was saved as adapters of `dense`."""
    files = find_model(name)
    adapters = ((files.config or {}).get(TWIN_KEY) or {}).get(ADAPTERS_KEY)
    if adapters is None:
        raise EdgewiseError(
            f"{name} has no adapters of its own: give the folder adapters/ of a run with `lora`"
        )
    if adapters.get("digest") != digest(dense):
        raise EdgewiseError(f"{name} is a change of another model than this one")
    state = read_twin_weights(files.name, files.download(), verify=True)
    factors = {key: value for key, value in state.items() if GATE_KEY not in key}
    return Adapters(factors, float(adapters["scale"]))


def load_adapted_base(
    name: str, folder: Path, adapters: dict[str, Any], factors: dict[str, Tensor], hub: HubOptions
) -> PreTrainedModel:
    """The base model with the factors merged, in single precision."""
    try:
        base, scale = str(adapters["base"]), float(adapters["scale"])
        expected, dtype = str(adapters["digest"]), getattr(torch, str(adapters["dtype"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EdgewiseError(f"{name}: config.json does not say what the adapters belong to") from error
    unpaired = [key for key in factors if _partner(key) not in factors]
    if unpaired or not factors:
        raise EdgewiseError(
            f"{name}: {min(unpaired, default='every factor')} has no partner; the adapters are damaged"
        )
    advice = f'put where it is into {folder / "config.json"}, after "base"'
    try:
        model = load_host(find_model(base, hub), dtype).float()  # pyright: ignore
    except EdgewiseError as error:
        raise EdgewiseError(
            f"{name} is a change of {base!r}, which cannot be loaded ({error}); {advice}"
        ) from error
    if digest(model) != expected:
        raise EdgewiseError(f"{name} is a change of another model than {base} is now; {advice}")
    check_finite(name, factors)
    try:
        Adapters(factors, scale).merge_into(model)
    except (AttributeError, KeyError, RuntimeError) as error:
        raise EdgewiseError(f"{name}: adapters do not fit {base}: {first_line(error)}") from error
    return model


def _partner(key: str) -> str | None:
    """The other factor of a pair; None for a name that is no factor's."""
    if key.endswith(_A):
        return key.removesuffix(_A) + _B
    return key.removesuffix(_B) + _A if key.endswith(_B) else None


def digest(model: PreTrainedModel) -> str:
    """A hash of a few elements of each weight, in single precision: tells models apart, quickly also for large ones."""
    sha = hashlib.sha256()
    for key, weight in sorted(model.named_parameters()):
        if GATE_KEY in key:
            continue
        flat = weight.detach().flatten()
        sample = flat[:: max(1, len(flat) // _DIGEST_ELEMENTS)]
        sha.update(f"{key} {tuple(weight.shape)}".encode() + sample.float().cpu().numpy().tobytes())
    return sha.hexdigest()[:16]
