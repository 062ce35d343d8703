"""Circuits as dataclasses that save themselves as JSON: every figure can be drawn again without a model."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgewise.circuits.minimal import Explained, MinimalCircuit
from edgewise.core.files import is_folder, write_json
from edgewise.core.results import Result
from edgewise.core.schema import read_as

FILE = "circuit.json"


@dataclass(frozen=True)
class Curve:
    """Effect explained by the k most important components, with corrupt activations in all others."""

    counts: list[int]
    """k, ascending."""
    explained: list[float]
    """Share of the mean effect."""
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    """Quartiles, over prompts, of the share of each prompt's own effect."""


@dataclass(frozen=True)
class PrefixCircuit:
    """The smallest prefix of a ranking of single components that explains the threshold's share of the effect: the count
    that most papers report. A joint search finds smaller circuits (`MinimalCircuit`)."""

    needed: int
    """Size of the circuit, with one ranking for all prompts."""
    explained: Explained
    needed_per_prompt: list[int]
    """Size of each prompt's circuit, with its own ranking."""
    curve: Curve
    ranking: list[tuple[str, float]]
    """Names, the most important first, with mean importance: of heads the mean of lost and restored effect, of edges the
    attribution score."""

    @property
    def per_prompt(self) -> tuple[float, float]:
        """Mean and standard deviation of `needed_per_prompt`."""
        sizes = self.needed_per_prompt
        return statistics.fmean(sizes), statistics.stdev(sizes) if len(sizes) > 1 else 0.0

    @property
    def size(self) -> int:
        return self.needed

    @property
    def components(self) -> list[str]:
        """Names of the circuit's components, as far as they are in the ranking."""
        return [name for name, _ in self.ranking[: self.needed]]


@dataclass(frozen=True)
class ComponentCircuit:
    """Circuits of heads, or of edges, that explain the threshold's share of the effect."""

    total: int
    """Components of the model."""
    prefix: PrefixCircuit
    minimal: MinimalCircuit | None = None

    @property
    def best(self) -> PrefixCircuit | MinimalCircuit:
        """The minimal circuit; the prefix if no joint search was made."""
        return self.minimal or self.prefix


@dataclass(frozen=True)
class TokenEdgeCounts:
    """Attention edges (head, query, key), counted prompt by prompt."""

    possible: list[int]
    """Pairs of a query and a key that the causal mask allows, over all heads."""
    open: list[int]
    """Edges with attention weight above 0 in the clean run."""
    used: list[int]
    """The fewest that explain the threshold's share of the prompt's effect."""


@dataclass(frozen=True)
class ModelCircuit:
    """One model's circuit on a task."""

    model: str
    kind: str
    """dense or sparse"""
    accuracy: float
    """Share of clean prompts whose answer scores above the wrong one."""
    clean_score: float
    corrupt_score: float
    prompts: int
    left_out: int
    """Prompts on which the model does not show the behaviour: their effect is below the floor of `find.FLOOR`."""
    held_out: int = 0
    """Prompts that nothing was chosen by and that circuits are reported on."""
    warnings: list[str] = field(default_factory=list)
    heads: ComponentCircuit | None = None
    head_effects: dict[str, list[list[float]]] | None = None
    """Mean over prompts of `lost` and `restored`, [layers][heads]."""
    edges: ComponentCircuit | None = None
    kv_heads: list[int] | None = None
    """Key-value heads of each layer; `G` in an edge's name is one of them, shared by a group of consecutive heads."""
    mib_config: dict[str, Any] | None = None
    """What MIB's JSON says of the model: n_layers, n_heads, parallel_attn_mlp, d_model."""
    head_head_edges: tuple[int, int] | None = None
    """Pairs of heads joined by an edge of the circuit, and all pairs of heads that an edge joins."""
    edges_at_tokens: MinimalCircuit | None = None
    """Token-level circuit: the minimal circuit's edges, each at as few tokens as explain enough."""
    token_edges: TokenEdgeCounts | None = None

    def counts(self) -> dict[str, float | None]:
        """Sizes of the circuit, by name; a smaller one is simpler."""
        heads, edges, pairs, token = self.heads, self.edges, self.head_head_edges, self.token_edges
        return {
            "heads": None if heads is None else heads.prefix.needed,
            "heads_minimal": _minimal_size(heads),
            "heads_per_prompt": None if heads is None else heads.prefix.per_prompt[0],
            "edges": None if edges is None else edges.prefix.needed,
            "edges_minimal": _minimal_size(edges),
            "edges_at_tokens": None if self.edges_at_tokens is None else self.edges_at_tokens.size,
            "edges_per_prompt": None if edges is None else edges.prefix.per_prompt[0],
            "head_head_edges": None if pairs is None else pairs[0],
            "open_token_edges": None if token is None else statistics.fmean(token.open),
            "token_edges": None if token is None else statistics.fmean(token.used),
        }


@dataclass(frozen=True, repr=False)
class CircuitResult(Result):
    """Circuits of one task, in one model or in a dense model and its sparse twin."""

    drawn_by = "edgewise.plots.circuit:draw_circuit"
    figure_name = "circuit"

    task: str
    metric: str
    threshold: float
    seed: int
    method: str
    """EAP or EAP-IG, by which edges are ranked."""
    examples: list[dict[str, Any]]
    """The prompts: clean, corrupt, answers, wrong."""
    models: list[ModelCircuit]

    @property
    def ratios(self) -> dict[str, float | None]:
        """Each of the first model's `counts` over that of the second; empty with one model."""
        if len(self.models) != 2:
            return {}
        first, second = (model.counts() for model in self.models)
        return {key: _ratio(first[key], second[key]) for key in first}

    @property
    def warnings(self) -> list[str]:
        return [warning for model in self.models for warning in model.warnings]

    def table(self) -> list[list[str]]:
        """One column for each model, and their ratio."""
        ratios = self.ratios
        header = ["", *(f"{model.model} ({model.kind})" for model in self.models)]
        rows = [header + (["times fewer"] if ratios else [])]
        for label, cell, ratio in _ROWS:
            if label in _EDGE_ROWS and not any(model.edges for model in self.models):
                continue
            if label in _MINIMAL_ROWS and all(cell(model) == "-" for model in self.models):
                continue
            value = ratios.get(ratio)
            last = [f"{value:.1f}" if value else ""] if ratios else []
            rows.append([label, *map(cell, self.models), *last])
        return rows

    def to_dict(self) -> dict[str, Any]:
        """What `save` writes: the fields, with `counts` and `ratios`, which `load` computes again."""
        content = asdict(self)
        for saved, model in zip(content["models"], self.models, strict=True):
            percent = round(100 * self.threshold)
            for key, value in model.counts().items():
                saved["token_edges_open" if key == "open_token_edges" else f"{key}_at_{percent}"] = value
        if len(self.models) == 2:
            content["ratios"] = self.ratios
        return content

    def save(self, folder: str | Path) -> Path:
        """Write circuit.json into a folder."""
        return write_json(Path(folder) / FILE, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> "CircuitResult":
        """Read circuit.json: from a folder, or the file itself."""
        path = Path(path)
        return read_as(cls, path / FILE if is_folder(path) else path, "circuits")


def _minimal_size(circuit: ComponentCircuit | None) -> int | None:
    return None if circuit is None or circuit.minimal is None else circuit.minimal.size


def _ratio(first: float | None, second: float | None) -> float | None:
    return None if first is None or not second else first / second


# --------------------------------------------------------------------------------------------------- rows of the table


def _size(circuit: ComponentCircuit | None) -> str:
    return "-" if circuit is None else f"{circuit.prefix.needed:,} of {circuit.total:,}"


def _minimal(circuit: ComponentCircuit | None) -> str:
    if circuit is None or circuit.minimal is None:
        return "-"
    return f"{circuit.minimal.size:,}" + ("" if circuit.minimal.is_minimal else " (interrupted)")


def _held_out(circuit: ComponentCircuit | None) -> str:
    return "-" if circuit is None else _explained(circuit.minimal)


def _explained(circuit: MinimalCircuit | None) -> str:
    """What a minimal circuit explains of prompts that nothing was chosen by; of a small task, of all its prompts."""
    if circuit is None:
        return "-"
    explained = circuit.explained
    return f"{explained.held_out:.2f}" + ("" if explained.test is not None else " (not held out)")


def _random(circuit: ComponentCircuit | None) -> str:
    controls = circuit.minimal.controls if circuit and circuit.minimal else None
    return "-" if controls is None else f"{controls.random:.2f} / {controls.complement:.2f}"


def _shuffled(circuit: ComponentCircuit | None) -> str:
    controls = circuit.minimal.controls if circuit and circuit.minimal else None
    if controls is None:
        return "-"
    return (
        f"none (at most {controls.shuffled:.2f})"
        if controls.shuffled_size is None
        else f"{controls.shuffled_size:,}"
    )


def _stability(circuit: ComponentCircuit | None) -> str:
    stability = circuit.minimal.stability if circuit and circuit.minimal else None
    return "-" if stability is None else f"{stability.jaccard:.2f}"


def _size_per_prompt(circuit: ComponentCircuit | None) -> str:
    return "-" if circuit is None else "{:,.1f} ± {:,.1f}".format(*circuit.prefix.per_prompt)


def _at_tokens(model: ModelCircuit) -> str:
    return "-" if model.edges_at_tokens is None else f"{model.edges_at_tokens.size:,}"


def _head_pairs(model: ModelCircuit) -> str:
    return "-" if model.head_head_edges is None else "{:,} of {:,}".format(*model.head_head_edges)


def _mean(model: ModelCircuit, key: str) -> str:
    value = model.counts()[key]
    return "-" if value is None else f"{value:,.1f}"


def _first_heads(model: ModelCircuit) -> str:
    return ", ".join(name for name, _ in model.heads.prefix.ranking[:4]) if model.heads else "-"


_ROWS: list[tuple[str, Callable[[ModelCircuit], str], str]] = [  # label, cell of a model, key in `ratios`
    ("prompts used", lambda m: f"{m.prompts - m.left_out} of {m.prompts}", ""),
    ("accuracy", lambda m: f"{m.accuracy:.1%}", ""),
    ("clean / corrupt score", lambda m: f"{m.clean_score:.2f} / {m.corrupt_score:.2f}", ""),
    ("heads, prefix", lambda m: _size(m.heads), "heads"),
    ("heads, minimal", lambda m: _minimal(m.heads), "heads_minimal"),
    ("  explain, held out", lambda m: _held_out(m.heads), ""),
    ("  random / complement", lambda m: _random(m.heads), ""),
    ("  shuffled answers", lambda m: _shuffled(m.heads), ""),
    ("  bootstrap Jaccard", lambda m: _stability(m.heads), ""),
    ("heads per prompt", lambda m: _size_per_prompt(m.heads), "heads_per_prompt"),
    ("edges, prefix", lambda m: _size(m.edges), "edges"),
    ("edges, minimal", lambda m: _minimal(m.edges), "edges_minimal"),
    ("  edges explain, held out", lambda m: _held_out(m.edges), ""),
    ("  edges, random / complement", lambda m: _random(m.edges), ""),
    ("  edges, shuffled answers", lambda m: _shuffled(m.edges), ""),
    ("edges at tokens, minimal", _at_tokens, "edges_at_tokens"),
    ("  edges at tokens explain", lambda m: _explained(m.edges_at_tokens), ""),
    ("edges per prompt", lambda m: _size_per_prompt(m.edges), "edges_per_prompt"),
    ("pairs of heads joined", _head_pairs, "head_head_edges"),
    ("token edges open", lambda m: _mean(m, "open_token_edges"), "open_token_edges"),
    ("token edges used", lambda m: _mean(m, "token_edges"), "token_edges"),
    ("first heads", _first_heads, ""),
]
_EDGE_ROWS = {label for label, _, _ in _ROWS if "edges" in label and "token edges" not in label} | {
    "pairs of heads joined"
}
_MINIMAL_ROWS = {label for label, _, _ in _ROWS if label.startswith("  ") or label.endswith("minimal")}
