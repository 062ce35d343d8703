"""The standards of the MIB benchmark: faithfulness at its circuit sizes, CPR and CMD, and its JSON of a circuit.

    {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"input": {"in_graph": true}, "a0.h1": ..., "m0": ..., "logits": ...},
     "edges": {"a0.h1->m3": {"score": 0.1, "in_graph": true}, "input->a0.h1<q>": ...}}

Where heads share a key or a value, an edge to it is written once for each of them, and read back as one.
"""

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgewise.circuits.objective import Objective
from edgewise.circuits.result import ModelCircuit
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.core.files import write_atomically
from edgewise.core.schema import parse_json, read_text
from edgewise.tasks.pairs import Split

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the edges at which MIB measures faithfulness."""
_SOURCE = re.compile(r"a(\d+)\.h(\d+)|m(\d+)|input")
_EDGE = re.compile(r"([^<>-]+)->([^<>-]+)(?:<([qkv])>)?")


@dataclass(frozen=True)
class Faithfulness:
    """Faithfulness of a ranking of edges at MIB's sizes."""

    explained: list[float]
    """Share of the effect that the best 0.1 % ... 100 % of the edges explain."""

    @property
    def cpr(self) -> float:
        """Integrated circuit performance ratio: area under the curve; larger is better."""
        return _area(self.explained)

    @property
    def cmd(self) -> float:
        """Integrated circuit-model distance: area between the curve and 1; smaller is better."""
        return _area([abs(1 - share) for share in self.explained])


def circuit_sizes(total: int) -> list[int]:
    """MIB's sizes of a circuit among `total` edges."""
    return [int(size * total) for size in SIZES]


def measure_faithfulness(objective: Objective, ranking: Tensor, split: Split = "test") -> Faithfulness:
    """Measure a ranking, int64 [m], the most important component first."""
    masks = torch.zeros(len(SIZES), objective.total, dtype=torch.bool)
    for mask, size in zip(masks, circuit_sizes(objective.total), strict=True):
        mask[ranking[:size]] = True
    return Faithfulness(objective.explained(masks, split).tolist())


def _area(values: list[float]) -> float:
    points = list(zip(SIZES, values, strict=True))
    return sum((b - a) * (y + z) / 2 for (a, y), (b, z) in pairwise(points))


def write_mib(model: ModelCircuit, path: str | Path) -> Path:
    """Write a model's smallest circuit of edges as MIB's JSON. Edges that circuit.json does not name score 0."""
    path = Path(path)
    write_atomically(path, lambda file: file.write_text(json.dumps(mib_graph(model), indent=1) + "\n"))
    return path


def mib_graph(model: ModelCircuit) -> dict[str, Any]:
    """A model's smallest circuit of edges in MIB's form."""
    if (
        model.edges is None
        or model.kv_heads is None
        or model.head_effects is None
        or model.mib_config is None
    ):
        raise EdgewiseError(f"{model.model} has no circuit of edges to write")
    heads = [len(layer) for layer in model.head_effects["lost"]]
    circuit = {*model.edges.best.components}
    scores = dict(model.edges.prefix.ranking)
    edges: dict[str, Any] = {}
    for name in [*scores, *sorted(circuit - scores.keys())]:
        entry = {"score": scores.get(name, 0.0), "in_graph": name in circuit}
        edges.update(dict.fromkeys(_mib_names(name, heads, model.kv_heads), entry))
    used = {end.partition("<")[0] for edge in edges if edges[edge]["in_graph"] for end in edge.split("->")}
    names = ["input", *(f"a{i}.h{j}" for i, count in enumerate(heads) for j in range(count))]
    names += [*(f"m{i}" for i in range(len(heads))), "logits"]
    nodes = {name: {"in_graph": name in used or name in ("input", "logits")} for name in names}
    return {"cfg": model.mib_config, "nodes": nodes, "edges": edges}


def read_mib(path: str | Path, kv_heads: list[int]) -> dict[str, tuple[float, bool]]:
    """Read MIB's JSON: score and membership of each edge, by our names, for a model whose layers have `kv_heads`.

    A shared key or value is in the circuit if one of its heads' edges is; its score is the largest of theirs.
    """
    try:
        content = parse_json(read_text(path, "circuit in MIB's form"))
        heads = [int(content["cfg"]["n_heads"])] * int(content["cfg"]["n_layers"])
        read = {
            _our_name(name, heads, kv_heads): (float(edge["score"]), bool(edge["in_graph"]))
            for name, edge in sorted(content["edges"].items(), key=lambda item: abs(item[1]["score"]))
        }
        kept = [
            _our_name(name, heads, kv_heads) for name, edge in content["edges"].items() if edge["in_graph"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise EdgewiseError(f"{path} is no circuit in MIB's form: {first_line(error)}") from error
    return {name: (score, name in {*kept}) for name, (score, _) in read.items()}


def _mib_names(name: str, heads: list[int], kv_heads: list[int]) -> list[str]:
    """An edge of ours, such as "L0H1 -> L2G0.k", as MIB's."""
    source, target = name.split(" -> ")
    head = re.fullmatch(r"L(\d+)H(\d+)", source)
    begin = "input" if source == "embedding" else f"a{head[1]}.h{head[2]}" if head else f"m{source[4:]}"
    into = re.fullmatch(r"L(\d+)([HG])(\d+)\.([qkv])", target)
    if into is None:
        return [f"{begin}->{'logits' if target == 'logits' else f'm{target[4:]}'}"]
    layer, number = int(into[1]), int(into[3])
    group = heads[layer] // kv_heads[layer] if into[2] == "G" else 1
    return [f"{begin}->a{layer}.h{number * group + i}<{into[4]}>" for i in range(group)]


def _our_name(name: str, heads: list[int], kv_heads: list[int]) -> str:
    match = _EDGE.fullmatch(name)
    source = _SOURCE.fullmatch(match[1]) if match else None
    if match is None or source is None:
        raise ValueError(f"{name} is no edge")
    begin = f"L{source[1]}H{source[2]}" if source[1] else f"MLP {source[3]}" if source[3] else "embedding"
    target = _SOURCE.fullmatch(match[2])
    if match[2] == "logits":
        return f"{begin} -> logits"
    if target is None or (target[1] is None) != (match[3] is None):
        raise ValueError(f"{name} is no edge")
    if target[1] is None:
        return f"{begin} -> MLP {target[3]}"
    layer, head, kind = int(target[1]), int(target[2]), match[3]
    if kind == "q" or heads[layer] == kv_heads[layer]:
        return f"{begin} -> L{layer}H{head}.{kind}"
    return f"{begin} -> L{layer}G{head // (heads[layer] // kv_heads[layer])}.{kind}"
