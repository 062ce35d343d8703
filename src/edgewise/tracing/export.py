"""The attribution graph in the JSON that circuit-tracer's front end and Neuronpedia read: one file for a graph, and
graph-metadata.json, which lists them. What their format has no field for, head shares above all, stands beside the standard
fields, which other readers ignore.
"""

import hashlib
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Node

SCHEMA_VERSION = 1
LIST = "graph-metadata.json"
_MIN_SHARE = 1e-3  # of a link that a head must carry to be listed with it
_KINDS = {
    "token": "embedding",
    "feature": "cross layer transcoder",
    "error": "mlp reconstruction error",
    "logit": "logit",
}


def write_graph(trace: Trace, folder: str | Path) -> Path:
    """Write a trace's graph into a folder, and add it to the folder's list."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    content = graph_json(trace)
    path = folder / f"{content['metadata']['slug']}.json"
    path.write_text(json.dumps(content))
    listed = folder / LIST
    try:
        graphs = json.loads(listed.read_text())["graphs"] if listed.is_file() else []
    except (ValueError, KeyError, TypeError) as error:
        raise EdgewiseError(f"{listed} is no list of graphs: {first_line(error)}; move it away") from error
    graphs = [graph for graph in graphs if graph.get("slug") != content["metadata"]["slug"]]
    listed.write_text(json.dumps({"graphs": [*graphs, content["metadata"]]}, indent=1) + "\n")
    return path


def graph_json(trace: Trace) -> dict[str, Any]:
    """The content of a graph's file."""
    ids = _ids(trace)
    output = next(node for node in trace.nodes if node.kind == "logit")
    return {
        "metadata": _metadata(trace),
        "qParams": {
            "pinnedIds": [ids[output.id]],
            "supernodes": [[c.label, *(ids[node] for node in c.nodes)] for c in trace.clusters],
            "linkType": "both",
            "clickedId": ids[output.id],
            "sg_pos": "",
        },
        "nodes": [_node(trace, node, ids[node.id]) for node in trace.nodes],
        "links": _links(trace, ids),
        "edgewise": {
            "kind": trace.kind,
            "figures": trace.metrics,
            "heads_at_80": [[f"L{layer}H{head}", part] for layer, head, part in trace.heads_at(0.8)],
            "looks": _qk_attributions(trace, ids),
        },
    }


def _metadata(trace: Trace) -> dict[str, Any]:
    thresholds = {name: trace.metrics[name] for name in ("node_threshold", "edge_threshold")}
    return {
        "slug": _slug(trace),
        "scan": trace.model,
        "transcoder_list": [trace.transcoder],
        "prompt_tokens": trace.tokens,
        "prompt": trace.prompt,
        "node_threshold": thresholds["node_threshold"],
        "schema_version": SCHEMA_VERSION,
        "info": {"generator": {"name": "edgewise", "version": version("edgewise")}},
        "generation_settings": {"max_feature_nodes": trace.metrics["features_active"]},
        "pruning_settings": thresholds,
    }


def _qk_attributions(trace: Trace, ids: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "head": f"L{attribution.layer}H{attribution.head}",
            "query": attribution.query,
            "key": attribution.key,
            "weight": attribution.weight,
            "score": attribution.score,
            "pairs": [[ids.get(q), ids.get(k), value] for q, k, value in attribution.pairs],
        }
        for attribution in trace.qk_attributions
    ]


def _ids(trace: Trace) -> dict[str, str]:
    """The exported id of each node. A feature is layer_feature_position and an error 0_layer_position; where a feature of
    layer 0 has the same id, the error's gets a suffix."""
    ids = {node.id: node.id for node in trace.nodes if node.kind != "error"}
    for node in trace.nodes:
        if node.kind == "error":
            name = f"0_{node.layer}_{node.position}"
            ids[node.id] = f"{name}_error" if name in ids else name
    return ids


def _node(trace: Trace, node: Node, name: str) -> dict[str, Any]:
    layer = {"token": "E", "logit": str(trace.maps.shape[0] + 1)}.get(node.kind, str(node.layer))
    number = node.number
    if node.kind == "feature":
        diagonal = node.layer + node.number
        number = diagonal * (diagonal + 1) // 2 + node.number  # Cantor's pairing function
    clerp = node.label
    if node.kind == "logit":
        clerp = f'Output "{node.label}" (p={node.value:.3f})'
    elif node.kind == "token":
        clerp = f'Emb: "{node.label}"'
    first_logit = next(other for other in trace.nodes if other.kind == "logit")
    return {
        "node_id": name,
        "feature": number,
        "layer": layer,
        "ctx_idx": node.position,
        "feature_type": _KINDS[node.kind],
        "jsNodeId": f"{name}-0",
        "clerp": clerp,
        "token_prob": node.value if node.kind == "logit" else 0.0,
        "is_target_logit": node is first_logit,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "influence": node.influence,
        "activation": node.value if node.kind == "feature" else None,
    }


def _links(trace: Trace, ids: dict[str, str]) -> list[dict[str, Any]]:
    links = []
    for link, shares in zip(trace.links, trace.head_shares, strict=True):
        smallest = _MIN_SHARE * max(abs(link.weight), 1e-30)
        heads = [
            [f"L{layer}H{head}", round(float(shares[layer, head]), 6)]
            for layer, head in zip(*(abs(shares) >= smallest).nonzero(), strict=True)
        ]
        heads.sort(key=lambda head: -abs(head[1]))
        links.append(
            {
                "source": ids[link.source],
                "target": ids[link.target],
                "weight": link.weight,
                "flow": link.flow,
                "straight": link.straight,
                "heads": heads,
            }
        )
    return links


def _slug(trace: Trace) -> str:
    """A file name from the model and the prompt, with six digits of a hash that makes it unique."""
    readable = re.sub(r"[^a-z0-9]+", "-", f"{Path(trace.model).name} {trace.prompt}".lower()).strip("-")[:60]
    logits = [text for text, _ in trace.logits]
    digits = hashlib.sha256(json.dumps([trace.model, trace.prompt, logits]).encode()).hexdigest()[:6]
    return f"{readable.strip('-')}-{digits}"
