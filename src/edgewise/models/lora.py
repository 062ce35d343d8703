"""A twin as what makes one of its base model: low-rank changes of some weights, and its gates. A small part of its size.

The files have names of their own. Read by peft, the changes alone would make a dense model of a sparse one.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.models import find as sources
from edgewise.models.host import (
    GATE_KEY,
    NEWEST_FORMAT,
    TWIN_KEY,
    check_finite,
    load_host,
    read_file,
)

ADAPTERS_KEY = "adapters"
"""The part of a twin's description that says what it is a change of."""
ADAPTERS_FILE = "twin-adapters.safetensors"
_A, _B = ".lora_A", ".lora_B"
_SAMPLED = 64


@dataclass(frozen=True)
class Adapters:
    """weight <- weight + scale * B @ A, for every pair of factors."""

    factors: dict[str, Tensor]  # <module>.lora_A [rank, in], <module>.lora_B [out, rank]
    scale: float

    @classmethod
    def of(cls, trained: Any) -> "Adapters":
        """Those that peft trains."""
        from peft import get_peft_model_state_dict

        scale = {c.lora_alpha / c.r for c in trained.peft_config.values()}
        factors = {
            key.removeprefix("base_model.model.").removesuffix(".weight"): value.detach().cpu()
            for key, value in get_peft_model_state_dict(trained, save_embedding_layers=False).items()
            if _A in key or _B in key
        }
        return cls(factors, scale.pop())

    @torch.no_grad()
    def merge_into(self, model: nn.Module) -> None:
        for key, a in self.factors.items():
            if key.endswith(_A):
                module = model.get_submodule(key.removesuffix(_A))
                change = self.scale * (self.factors[key.removesuffix(_A) + _B] @ a)
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
    """Write the twin that is saved whole in `twin_folder` as changes of its base, which is called `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets = {key: value.cpu() for key, value in twin.state_dict().items() if GATE_KEY in key}
    save_file({**adapters.factors, **offsets}, folder / ADAPTERS_FILE)
    config = json.loads((twin_folder / "config.json").read_text())
    config[TWIN_KEY]["format"] = NEWEST_FORMAT
    config[TWIN_KEY][ADAPTERS_KEY] = {
        "base": str(Path(name).expanduser().resolve()) if Path(name).expanduser().is_dir() else name,
        "dtype": str(base.dtype).removeprefix("torch."),
        "digest": digest(base),
        "scale": adapters.scale,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def changed_base(
    name: str, folder: Path, described: dict[str, Any]
) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """The base with its weights changed, in single precision, and what belongs to the gates."""
    try:
        base, scale = str(described["base"]), float(described["scale"])
        known, dtype = str(described["digest"]), getattr(torch, str(described["dtype"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EdgewiseError(f"{name}: config.json does not say what the adapters belong to") from error
    state = read_file(name, folder / ADAPTERS_FILE)
    offsets = {key: state.pop(key) for key in list(state) if GATE_KEY in key}
    where = f'put where it is into {folder / "config.json"}, after "base"'
    try:
        model = load_host(sources.find(base), dtype).float()  # pyright: ignore
    except EdgewiseError as error:
        raise EdgewiseError(
            f"{name} is a change of {base!r}, which cannot be loaded ({error}); {where}"
        ) from error
    if digest(model) != known:
        raise EdgewiseError(f"{name} is a change of another model than {base} is now; {where}")
    check_finite(name, state)
    try:
        Adapters(state, scale).merge_into(model)
    except (AttributeError, KeyError, RuntimeError) as error:
        raise EdgewiseError(f"{name}: adapters do not fit {base}: {first_line(error)}") from error
    return model, offsets


def digest(model: PreTrainedModel) -> str:
    """Tells models apart by a few numbers of each weight, in single precision: as quick for a large model as for a small."""
    seen = hashlib.sha256()
    for key, weight in sorted(model.named_parameters()):
        if GATE_KEY in key:
            continue
        flat = weight.detach().flatten()
        few = flat[:: max(1, len(flat) // _SAMPLED)]
        seen.update(f"{key} {tuple(weight.shape)}".encode() + few.float().cpu().numpy().tobytes())
    return seen.hexdigest()[:16]
