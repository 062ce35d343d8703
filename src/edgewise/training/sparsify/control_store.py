"""A control's folder: its weights and its mask."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from edgewise.core.files import write_json
from edgewise.gating.edge_gate import gates_of
from edgewise.measure.loss import Measured
from edgewise.training.sparsify.masks import TOP_K, Mask, random_mask
from edgewise.training.sparsify.null_value import set_null_values

_WEIGHTS, _MASK = "behind-a-mask.safetensors", "mask.json"


def control_folder(run: Path, name: str) -> Path:
    return run / "controls" / name.replace(" ", "-")


def save_control(folder: Path, model: nn.Module, kind: str, twin: Measured, context: int, seed: int) -> None:
    """Write weights and mask, in files that do not load as a model: without its mask it is another one."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, str(folder / _WEIGHTS))
    counts = {"density": twin.density_per_head, "edges_per_query": twin.edges_per_query_per_head}
    content = {"kind": kind, "context": context, "seed": seed}
    content |= {name: values.tolist() for name, values in counts.items()}
    write_json(folder / _MASK, content)


def load_control(folder: Path, dense: nn.Module) -> Mask:
    """Load a control's weights into a dense model, in place; returns the mask it was trained behind (see `masked`)."""
    content = json.loads((folder / _MASK).read_text())
    file = str(folder / _WEIGHTS)
    with safe_open(file, "pt") as weights:
        has_null_value = any(key.endswith("edge_gate.null_value") for key in weights.keys())  # noqa: SIM118
    zeros = [torch.zeros(gate.kv_heads, gate.width) for gate in gates_of(dense)]
    set_null_values(dense, zeros if has_null_value else None)
    load_model(dense, file)
    if content["kind"] == "random":
        return random_mask(torch.tensor(content["density"]), content["context"], content["seed"])
    return TOP_K[content["kind"]](torch.tensor(content["edges_per_query"]))
