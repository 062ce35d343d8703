"""Circuits of edges between components: all edges ranked by attribution, and the effect that the best k explain."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.circuits.curve import Ranks, measure_circuit, ranks
from edgewise.circuits.eap import edge_attribution
from edgewise.circuits.edge_patching import scores_with_edges
from edgewise.circuits.memory import edge_chunks, in_chunks
from edgewise.circuits.replay import Replay
from edgewise.circuits.result import ComponentCircuit
from edgewise.circuits.search import Progress, Search
from edgewise.circuits.streams import EdgeRuns, record_edges
from edgewise.circuits.wiring import Wiring
from edgewise.core.errors import EdgewiseError

NAMED = 2000
"""Edges whose names are saved; the counts and the curve are of all."""


class EdgeCircuit(NamedTuple):
    """A circuit of edges, and the pairs of heads that it joins."""

    circuit: ComponentCircuit
    kv_heads: list[int]
    """Of each layer."""
    head_head_edges: tuple[int, int]
    """Pairs of heads joined by an edge of the circuit, and all that an edge joins."""


def find_edges(search: Search, wiring: Wiring) -> EdgeCircuit:
    """Rank edges by attribution and find the fewest that explain enough."""
    replay, config = search.replay, search.config
    edges = EdgePatching(replay, wiring, config.max_bytes)
    with search.status("recording streams"):
        _check_all_kept(search.name, edges)
    with search.bar(f"attributing {wiring.count:,} edges", replay.n) as progress:
        scores = edges.attribution(config.ig_steps, progress)  # [n, edges]
    pooled = scores.mean(0)
    order = Ranks(ranks(pooled.abs()), ranks(scores.abs()))
    first = order.pooled.argsort()[:NAMED]
    names = list(zip(wiring.edge_names(first.tolist()), pooled[first].tolist(), strict=True))
    with search.status("faithfulness of the best edges"):
        circuit = measure_circuit(replay, edges.keep_best, order, names, config.threshold)
    return EdgeCircuit(
        circuit,
        kv_heads=[layer.kv_heads for layer in wiring.parts.layers],
        head_head_edges=_head_pairs(wiring, order.pooled < circuit.needed),
    )


class EdgePatching:
    """Edges of n prompts, in chunks that fit into memory. A chunk's corrupt stream is recorded once and kept, unless the
    streams of all chunks do not fit."""

    def __init__(self, replay: Replay, wiring: Wiring, max_memory: int) -> None:
        self.replay, self.wiring = replay, wiring
        size, self.keeps_streams = edge_chunks(replay, wiring, max_memory)
        self._chunks = in_chunks(replay, size)
        self._recorded: dict[int, EdgeRuns] = {}
        self._exists = wiring.exists.flatten().to(replay.effect.device)

    def runs(self) -> Iterator[tuple[Tensor, EdgeRuns]]:
        """Each chunk's prompts, int64, and its recorded runs."""
        for number, (prompts, replay) in enumerate(self._chunks):
            runs = self._recorded.get(number) or record_edges(replay, self.wiring)
            if self.keeps_streams:
                self._recorded[number] = runs
            yield prompts, runs

    def attribution(self, steps: int, progress: Progress = lambda prompts: None) -> Tensor:
        """EAP-IG scores, [n, edges]."""
        scores = []
        for prompts, runs in self.runs():
            scores.append(edge_attribution(runs, steps))
            progress(len(prompts))
        return torch.cat(scores).flatten(1)[:, self._exists]

    def keep_best(
        self, order: Tensor, counts: Tensor
    ) -> Tensor:  # int64 [n, edges], [points, n] -> [points, n]
        """Metric when each prompt keeps the edges of rank below its count."""
        chunks = []
        for prompts, runs in self.runs():
            keep = torch.zeros(len(prompts), len(self._exists), dtype=torch.bool, device=order.device)
            scores = []
            for count in counts[:, prompts].to(order.device):
                keep[:, self._exists] = order[prompts] < count[:, None]
                scores.append(scores_with_edges(runs, keep.unflatten(1, self.wiring.exists.shape)))
            chunks.append(torch.stack(scores))
        return torch.cat(chunks, 1)


def _check_all_kept(name: str, edges: EdgePatching) -> None:
    """With all edges kept the clean run must come out; it does not if `models.architecture` misreads an architecture."""
    n, count = edges.replay.n, edges.wiring.count
    order = torch.arange(count, device=edges.replay.effect.device).expand(n, -1)
    scores = edges.keep_best(order, torch.full((1, n), count))
    explained = edges.replay.mean_explained(scores).item()
    if not abs(explained - 1) < 1e-3:
        raise EdgewiseError(
            f"{name}: keeping all edges explains {explained:.4f} of the effect instead of 1, so this architecture's edges "
            "are not what edgewise takes them for; circuits of heads work (`edges=False`)"
        )


def _head_pairs(wiring: Wiring, kept: Tensor) -> tuple[int, int]:  # bool [edges]
    """Pairs of heads that the kept edges join, and all pairs."""
    pairs, total = wiring.head_pairs
    joined = pairs[wiring.exists][kept.cpu()]
    return len(joined[joined >= 0].unique()), total
