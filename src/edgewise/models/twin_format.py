"""How a folder says that it holds a sparse twin.

A sparse twin read without its gates is another model: dense, and quietly wrong. So a twin's folder cannot be opened that
way. Its weights are in `twin*.safetensors`, which transformers does not look for, and its `model_type` is a sentence, which
transformers quotes when it refuses. What `config.json` says:

    {"model_type": TWIN_TYPE, "architectures": [ARCHITECTURE],
     "edgewise": {"format": FORMAT, "gate": {...}, "host": {...}, "manifest": "twin-manifest.json"}}

`host` is the dense model's own config, `manifest` the file that lists the weights (module `manifest`). A twin saved as LoRA
factors has `adapters` beside it (module `lora`).
"""

from dataclasses import asdict
from typing import Any

from edgewise.core.errors import EdgewiseError
from edgewise.gating.config import GateConfig

TWIN_TYPE = "sparse twin (pip install edgewise, then open it with edgewise.load)"
"""The `model_type` of every twin."""
ARCHITECTURE = "SparseTwin"
"""In place of the host's class, by which servers such as vLLM would run the weights as a dense model."""
TWIN_KEY = "edgewise"
"""The key of config.json that makes it a twin's."""
ADAPTERS_KEY = "adapters"
"""Below TWIN_KEY: which base model the LoRA factors change."""
MANIFEST_KEY = "manifest"
"""Below TWIN_KEY: the file that says what all others held when the twin was saved."""
CONFIG = "config.json"
GATE_KEY = ".edge_gate."
"""In the name of every parameter of a gate."""
COMPACT_KEY = "compact"
"""Below TWIN_KEY: the heads that each layer of a compacted twin has kept."""
FORMAT = 4
WEIGHTS, ADAPTERS = "twin", "twin-adapters"
"""With what the names of weight files begin."""
WEIGHTS_FILE = f"{WEIGHTS}.safetensors"
ADAPTERS_FILE = f"{ADAPTERS}.safetensors"


KeptHeads = list[list[int]]
"""Heads of each layer, counted as in the whole model."""


def twin_config(gate: GateConfig, host: dict[str, Any], kept: KeptHeads | None = None) -> dict[str, Any]:
    """The config.json of a twin, from its gate, its host's config, and the heads that are left if it is compacted."""
    twin: dict[str, Any] = {"format": FORMAT, "gate": asdict(gate), "host": host}
    if kept is not None:
        twin[COMPACT_KEY] = kept
    return {"model_type": TWIN_TYPE, "architectures": [ARCHITECTURE], TWIN_KEY: twin}


def read_kept_heads(name: str, config: dict[str, Any]) -> KeptHeads | None:
    """The heads that each layer of a compacted twin has kept; None if it has all."""
    kept = config[TWIN_KEY].get(COMPACT_KEY)
    if kept is None:
        return None
    is_list = isinstance(kept, list) and all(isinstance(heads, list) and heads for heads in kept)
    if not is_list or not all(isinstance(head, int) and head >= 0 for heads in kept for head in heads):
        raise EdgewiseError(f"{name}: config.json lists no heads of a compacted twin; the folder is damaged")
    return kept


def stem_of(config: dict[str, Any]) -> str:
    """With what the names of a twin's weight files begin, from its config.json."""
    return ADAPTERS if ADAPTERS_KEY in config[TWIN_KEY] else WEIGHTS


def read_gate(name: str, config: dict[str, Any]) -> tuple[GateConfig, dict[str, Any]]:
    """The gate and the host's config, from a twin's config.json."""
    twin = config[TWIN_KEY]
    if isinstance(twin, dict) and (written := twin.get("format", FORMAT)) != FORMAT:
        is_newer = isinstance(written, int) and written > FORMAT
        advice = (
            "a newer edgewise; upgrade with pip" if is_newer else "an older edgewise; make the twin again"
        )
        raise EdgewiseError(
            f"{name} is in format {written}, this edgewise reads {FORMAT}: written by {advice}"
        )
    try:
        gate, host = twin["gate"], dict(twin["host"])
        kind, b, sinks, null_value = str(gate["kind"]), float(gate["b"]), gate["sinks"], gate["null_value"]
    except (KeyError, TypeError, ValueError) as error:
        raise EdgewiseError(
            f"{name}: config.json describes no gate and host; the folder is damaged"
        ) from error
    if not isinstance(sinks, bool) or not isinstance(null_value, bool):
        raise EdgewiseError(f"{name}: config.json describes no gate and host; the folder is damaged")
    return GateConfig(kind, b, sinks, null_value), host
