"""Facts of the JSON schema (draft-07) by which Neuronpedia accepts an uploaded attribution graph."""

from collections.abc import Iterator
from typing import Any

SCHEMA = {
    "metadata": {
        "slug": str, "scan": str, "prompt_tokens": [str], "prompt": str, "node_threshold?": float,
        "feature_details?": {"feature_json_base_url?": str, "neuronpedia_source_set?": str},
        "info?": {"creator_name?": str, "source_urls?": list, "create_time_ms?": float,
                  "generator?": {"name?": str, "version?": str, "url?": str, "email?": str}},
        "generation_settings?": {"max_n_logits?": int, "desired_logit_prob?": float, "batch_size?": int,
                                 "max_feature_nodes?": int},
        "pruning_settings?": {"node_threshold?": float, "edge_threshold?": float},
    },
    "qParams": {"pinnedIds?": [str], "supernodes?": list, "linkType?": str, "clickedId?": str, "sg_pos?": str},
    "nodes": [{"node_id": str, "feature": (int, None), "layer": (str, int), "ctx_idx": int, "feature_type": str,
               "jsNodeId": str, "clerp": str, "influence?": (float, None), "activation?": (float, None)}],
    "links": [{"source": str, "target": str, "weight": float}],
}  # fmt: skip
"""Types of the fields; `?`: may be missing. Other fields are ignored."""


def misfits(value: Any, wanted: Any = SCHEMA, path: str = "") -> Iterator[str]:
    """Paths of the fields of a JSON file that are missing or of another type."""
    if isinstance(wanted, dict) and isinstance(value, dict):
        for key, kind in wanted.items():
            name = key.removesuffix("?")
            if name in value:
                yield from misfits(value[name], kind, f"{path}/{name}")
            elif name == key:
                yield f"{path}/{name}"
    elif isinstance(wanted, list) and isinstance(value, list):
        for item in value:
            yield from misfits(item, wanted[0], path)
    elif not any(_is(value, kind) for kind in (wanted if isinstance(wanted, tuple) else (wanted,))):
        yield path


def _is(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if kind in (int, float):  # in draft-07 a number without a fraction is an integer
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (kind is float or value == int(value))
    return isinstance(kind, type) and isinstance(value, kind)
