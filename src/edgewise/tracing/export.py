"""The attribution graph in the JSON that circuit-tracer's front end and Neuronpedia read: one file for a graph, and
graph-metadata.json, which lists them. What their format has no field for, head shares above all, stands beside the standard
fields, which other readers ignore.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgewise.core.errors import EdgewiseError
from edgewise.core.files import write_json
from edgewise.core.schema import read_as
from edgewise.core.text import visible
from edgewise.tracing.graph_file import KINDS
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Node

SCHEMA_VERSION = 1
LIST = "graph-metadata.json"
_MIN_SHARE = 1e-3  # of a link that a head must carry to be listed with it


@dataclass(frozen=True)
class _GraphList:
    graphs: list[dict[str, Any]]


@dataclass(frozen=True)
class _QueryParameters:
    pinnedIds: list[str]
    supernodes: list[list[str]]


@dataclass(frozen=True)
class _Supernodes:
    qParams: _QueryParameters


def write_graph(trace: Trace, folder: str | Path, supernodes: str | Path | None = None) -> Path:
    """Write a trace's graph into a folder, and add it to the folder's list. `supernodes`: the file of pinned nodes and their
    groups that the report exports, instead of the trace's clusters."""
    folder = Path(folder)
    content = graph_json(trace)
    if supernodes is not None:
        content["qParams"] |= _read_supernodes(
            Path(supernodes), {node["node_id"] for node in content["nodes"]}
        )
    slug = content["metadata"]["slug"]
    path = write_json(folder / f"{slug}.json", content, indent=None)
    listed = folder / LIST
    graphs = read_as(_GraphList, listed, "list of graphs").graphs if listed.is_file() else []
    graphs = [graph for graph in graphs if graph.get("slug") != slug]
    write_json(listed, {"graphs": [*graphs, content["metadata"]]})
    return path


def _read_supernodes(path: Path, known: set[str]) -> dict[str, Any]:
    pinned = read_as(_Supernodes, path, "supernodes").qParams
    named = {*pinned.pinnedIds, *(node for _, *nodes in filter(None, pinned.supernodes) for node in nodes)}
    if unknown := sorted(named - known):
        raise EdgewiseError(
            f"{path} names {visible(unknown[0], 40)}, which is no node of the trace: it was exported from another one"
        )
    return asdict(pinned)


def graph_json(trace: Trace) -> dict[str, Any]:
    """The content of a graph's file."""
    ids = _ids(trace)
    output = next(node for node in trace.nodes if node.kind == "logit")
    supernodes = [[cluster.label, *(ids[node] for node in cluster.nodes)] for cluster in trace.clusters]
    return {
        "metadata": _metadata(trace),
        "qParams": {
            # their viewers draw a supernode only if its members are pinned
            "pinnedIds": [ids[output.id], *dict.fromkeys(i for members in supernodes for i in members[1:])],
            "supernodes": supernodes,
            "linkType": "both",
            "clickedId": ids[output.id],
            "sg_pos": "",
        },
        "nodes": [_node(trace, node, ids[node.id]) for node in trace.nodes],
        "links": _links(trace, ids),
        "edgewise": {
            "kind": trace.kind,
            "metrics": trace.metrics,
            "heads_at_80": [[f"L{layer}H{head}", part] for layer, head, part in trace.heads_at(0.8)],
            "qk_attributions": _qk_attributions(trace, ids),
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
    """The exported id of each node: layer_feature_position, where the feature of an error is -1."""
    return {
        node.id: f"{node.layer}_-1_{node.position}" if node.kind == "error" else node.id
        for node in trace.nodes
    }


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
        "feature_type": KINDS[node.kind],
        "jsNodeId": f"{name}-0",
        "clerp": clerp,
        "token_prob": node.value if node.kind == "logit" else 0.0,
        "is_target_logit": node is first_logit,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        # cumulative: their viewers keep the nodes up to a threshold
        "influence": node.cumulative_influence,
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
