"""The graph in the JSON that circuit-tracer's front end and Neuronpedia read: one file for a graph, and graph-metadata.json,
which lists them. What their format has no field for, the heads that carry a link above all, stands beside the standard
fields, where other readers pass over it.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.tracing.result import Node, Trace

SCHEMA_VERSION = 1
LIST = "graph-metadata.json"
_LEAST = 1e-3  # share of a link that a head must carry to be named with it
_KINDS = {
    "token": "embedding",
    "feature": "cross layer transcoder",
    "error": "mlp reconstruction error",
    "logit": "logit",
}


def write_graph(trace: Trace, folder: str | Path) -> Path:
    """Write a trace's graph into a folder, and note it in the folder's list."""
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
    graphs = [each for each in graphs if each.get("slug") != content["metadata"]["slug"]]
    listed.write_text(json.dumps({"graphs": [*graphs, content["metadata"]]}, indent=1) + "\n")
    return path


def graph_json(trace: Trace) -> dict[str, Any]:
    """The whole file."""
    from edgewise import __version__

    layers = trace.maps.shape[0]
    ids = _ids(trace)
    clusters = [[each.label, *(ids[node] for node in each.nodes)] for each in trace.clusters]
    output = next(node for node in trace.nodes if node.kind == "logit")
    return {
        "metadata": {
            "slug": _slug(trace),
            "scan": trace.model,
            "transcoder_list": [trace.transcoder],
            "prompt_tokens": trace.tokens,
            "prompt": trace.prompt,
            "node_threshold": trace.figures["node_threshold"],
            "schema_version": SCHEMA_VERSION,
            "info": {"generator": {"name": "edgewise", "version": __version__}},
            "generation_settings": {"max_feature_nodes": trace.figures["features_active"]},
            "pruning_settings": {
                "node_threshold": trace.figures["node_threshold"],
                "edge_threshold": trace.figures["edge_threshold"],
            },
        },
        "qParams": {
            "pinnedIds": [ids[output.id]],
            "supernodes": clusters,
            "linkType": "both",
            "clickedId": ids[output.id],
            "sg_pos": "",
        },
        "nodes": [_node(trace, node, ids[node.id], layers) for node in trace.nodes],
        "links": _links(trace, ids),
        "edgewise": {
            "kind": trace.kind,
            "figures": trace.figures,
            "heads_at_80": [[f"L{layer}H{head}", part] for layer, head, part in trace.heads_at(0.8)],
            "looks": [
                {
                    "head": f"L{look.layer}H{look.head}",
                    "query": look.query,
                    "key": look.key,
                    "weight": look.weight,
                    "score": look.score,
                    "pairs": [[ids.get(q), ids.get(k), value] for q, k, value in look.pairs],
                }
                for look in trace.looks
            ],
        },
    }


def _ids(trace: Trace) -> dict[str, str]:
    """Each node's name there. A feature is layer_feature_position and an error 0_layer_position, so that those of layer 0's
    first features could be one and the same: then the error's gets a tail."""
    ids = {node.id: node.id for node in trace.nodes if node.kind != "error"}
    for node in trace.nodes:
        if node.kind == "error":
            name = f"0_{node.layer}_{node.position}"
            ids[node.id] = f"{name}_error" if name in ids else name
    return ids


def _node(trace: Trace, node: Node, name: str, layers: int) -> dict[str, Any]:
    layer = {"token": "E", "logit": str(layers + 1)}.get(node.kind, str(node.layer))
    number = node.number
    if node.kind == "feature":
        both = node.layer + node.number
        number = both * (both + 1) // 2 + node.number  # Cantor's pairing
    clerp = node.label
    if node.kind == "logit":
        clerp = f'Output "{node.label}" (p={node.value:.3f})'
    elif node.kind == "token":
        clerp = f'Emb: "{node.label}"'
    first_logit = next(each for each in trace.nodes if each.kind == "logit")
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
    for link, carried in zip(trace.links, trace.head_shares, strict=True):
        least = _LEAST * max(abs(link.weight), 1e-30)
        heads = [
            [f"L{layer}H{head}", round(float(carried[layer, head]), 6)]
            for layer, head in zip(*(abs(carried) >= least).nonzero(), strict=True)
        ]
        heads.sort(key=lambda each: -abs(each[1]))
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
    """A file name from the model and the prompt; a few digits of their hash tell apart what reads alike."""
    readable = re.sub(r"[^a-z0-9]+", "-", f"{Path(trace.model).name} {trace.prompt}".lower()).strip("-")[:60]
    logits = [text for text, _ in trace.logits]
    digits = hashlib.sha256(json.dumps([trace.model, trace.prompt, logits]).encode()).hexdigest()[:6]
    return f"{readable.strip('-')}-{digits}"
