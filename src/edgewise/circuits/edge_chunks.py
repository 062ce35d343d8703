"""Attribution and patching of the edges of many prompts, in chunks that fit into memory."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from edgewise.circuits.eap import edge_attribution
from edgewise.circuits.edge_patching import scores_with_edges
from edgewise.circuits.memory import edge_chunks, in_chunks
from edgewise.circuits.replay import Replay
from edgewise.circuits.streams import EdgeRuns, record_edges
from edgewise.circuits.wiring import Wiring


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

    def attribution(self, steps: int, progress: Callable[[int], object] = lambda prompts: None) -> Tensor:
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
