"""Circuits of edges between components: all edges ranked by attribution, and the effect that the best k explain."""

from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.circuits.curve import Ranks, measure_prefix, ranks
from edgewise.circuits.edge_chunks import EdgePatching
from edgewise.circuits.edge_objective import EdgeObjective
from edgewise.circuits.edge_tokens import EdgeTokenObjective, find_edge_tokens
from edgewise.circuits.find_minimal import Interrupted, with_minimal
from edgewise.circuits.minimal import MinimalCircuit
from edgewise.circuits.replay import Replay
from edgewise.circuits.result import ComponentCircuit
from edgewise.circuits.search import Search
from edgewise.circuits.wiring import Wiring
from edgewise.core.errors import UnsupportedArchitecture
from edgewise.tasks.pairs import Split

NAMED = 2000
"""Edges whose names are saved; the counts and the curve are of all."""
AT_TOKENS = 100
"""Size of a minimal circuit up to which tokens are searched for: each edge is a candidate at a dozen tokens or more."""


class EdgeCircuit(NamedTuple):
    """A circuit of edges, and the pairs of heads that it joins."""

    edges: ComponentCircuit
    kv_heads: list[int]
    """Of each layer."""
    head_head_edges: tuple[int, int]
    """Pairs of heads joined by an edge of the circuit, and all that an edge joins."""
    edges_at_tokens: MinimalCircuit | None = None
    """The minimal circuit's edges at as few tokens as explain enough."""


def find_edges(search: Search, wiring: Wiring, heads: ComponentCircuit) -> EdgeCircuit:
    """Rank edges by attribution and find the fewest that explain enough, of all and within the circuit of heads."""
    replay, config = search.replay, search.config
    edges = EdgePatching(replay, wiring, config.max_bytes)
    with search.status("recording streams"):
        _check_all_kept(search.name, edges)
    with search.bar(f"attributing {wiring.count:,} edges", replay.n) as progress:
        scores = edges.attribution(config.ig_steps, progress)  # [n, edges]
    objective = EdgeObjective(search.splits, wiring, config.max_bytes)
    pooled = scores.mean(0)
    order = Ranks(ranks(pooled.abs()), ranks(scores.abs()))
    first = order.pooled.argsort()[:NAMED]
    names = list(zip(wiring.edge_names(first.tolist()), pooled[first].tolist(), strict=True))
    with search.status("faithfulness of the best edges"):
        prefix = measure_prefix(search, objective, edges.keep_best, order, names)
    kv_heads = [layer.kv_heads for layer in wiring.parts.layers]
    pairs = _head_pairs(wiring, order.pooled < prefix.needed)
    try:
        within = None if heads.minimal is None else wiring.within(heads.minimal.components)
        circuit = with_minimal(search, "edges", objective, order.pooled, prefix, config.minimal_edges, within)
    except Interrupted as interrupt:
        raise Interrupted(EdgeCircuit(interrupt.partial, kv_heads, pairs)) from interrupt
    edge_circuit = EdgeCircuit(circuit, kv_heads, pairs)
    if circuit.minimal is None or circuit.minimal.size > AT_TOKENS:
        return edge_circuit
    try:
        return edge_circuit._replace(edges_at_tokens=_at_tokens(search, wiring, circuit.minimal))
    except KeyboardInterrupt as interrupt:
        raise Interrupted(edge_circuit) from interrupt


def _at_tokens(search: Search, wiring: Wiring, circuit: MinimalCircuit) -> MinimalCircuit | None:
    """A token-level circuit among the edges of a minimal one."""
    config, kept = search.config, {*circuit.components}
    splits: dict[Split, Replay] = {key: of for key, of in search.splits.items() if key != "selection"}
    objective = EdgeTokenObjective(splits, wiring, config.max_bytes, search.roles)
    edges = torch.tensor([name in kept for name in wiring.edge_names([*range(wiring.count)])])
    with search.moving("edges at tokens") as report:
        return find_edge_tokens(objective, edges, config.threshold, report)


def _check_all_kept(name: str, edges: EdgePatching) -> None:
    """With all edges kept the clean run must come out; it does not if `models.architecture` misreads an architecture."""
    n, count = edges.replay.n, edges.wiring.count
    order = torch.arange(count, device=edges.replay.effect.device).expand(n, -1)
    scores = edges.keep_best(order, torch.full((1, n), count))
    explained = edges.replay.mean_explained(scores).item()
    tolerance = 1e-3 if edges.replay.model.dtype in (torch.float32, torch.float64) else 2e-2
    if not abs(explained - 1) < tolerance:
        raise UnsupportedArchitecture(
            f"{name}: keeping all edges explains {explained:.4f} of the effect instead of 1, so this architecture's edges "
            "are not what edgewise takes them for; circuits of heads work (`edges=False`)"
        )


def _head_pairs(wiring: Wiring, kept: Tensor) -> tuple[int, int]:  # bool [edges]
    """Pairs of heads that the kept edges join, and all pairs."""
    pairs, total = wiring.head_pairs
    joined = pairs[wiring.exists][kept.cpu()]
    return len(joined[joined >= 0].unique()), total
