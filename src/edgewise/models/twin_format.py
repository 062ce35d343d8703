"""How a folder says that it holds a sparse twin.

A sparse twin read without its gates is another model: dense, and quietly wrong. So a twin's folder cannot be opened that
way. Its weights are in `twin*.safetensors`, which transformers does not look for, and its `model_type` is a sentence, which
transformers quotes when it refuses. What `config.json` says:

    {"model_type": TWIN_TYPE, "architectures": [...], "edgewise": {"format": FORMAT, "gate": {...}, "host": {...}}}

`host` is the dense model's own config. A twin saved as LoRA factors has `adapters` beside it (`lora`).
"""

from dataclasses import asdict
from typing import Any

from edgewise.core.errors import EdgewiseError
from edgewise.gating.config import GateConfig

TWIN_TYPE = "sparse twin (pip install edgewise, then open it with edgewise.load)"
"""The `model_type` of every twin."""
TWIN_KEY = "edgewise"
"""The key of config.json that makes it a twin's."""
ADAPTERS_KEY = "adapters"
"""Below TWIN_KEY: which base model the LoRA factors change."""
GATE_KEY = ".edge_gate."
"""In the name of every parameter of a gate."""
FORMAT = 4
WEIGHTS_FILE = "twin.safetensors"
ADAPTERS_FILE = "twin-adapters.safetensors"


def twin_config(gate: GateConfig, host: dict[str, Any]) -> dict[str, Any]:
    """The config.json of a twin, from its gate and its host's config."""
    return {
        "model_type": TWIN_TYPE,
        "architectures": host.get("architectures"),
        TWIN_KEY: {"format": FORMAT, "gate": asdict(gate), "host": host},
    }


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
    return GateConfig(kind, b, bool(sinks), bool(null_value)), host
