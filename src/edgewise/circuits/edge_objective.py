"""Circuits of edges as masks: along an edge in the circuit a target reads what the source writes in this run, along any
other what it wrote in the corrupt run."""

from collections.abc import Sequence

import torch
from torch import Tensor

from edgewise.circuits.edge_chunks import EdgePatching
from edgewise.circuits.edge_masks import MaskedRun
from edgewise.circuits.head_objective import SPREAD, shuffle
from edgewise.circuits.memory import bytes_per_prompt
from edgewise.circuits.objective import MaskGradient, Objective, majority
from edgewise.circuits.replay import Replay
from edgewise.circuits.streams import EdgeRuns, clean_stream
from edgewise.circuits.wiring import Wiring
from edgewise.tasks.pairs import Split


class EdgeObjective(Objective):
    """The edges of a model, numbered as in `Wiring.edge_names`."""

    def __init__(self, replays: dict[Split, Replay], wiring: Wiring, max_memory: int) -> None:
        super().__init__()
        self.replays, self.wiring, self.max_memory = replays, wiring, max_memory
        self.total = wiring.count
        self.device = replays["fit"].effect.device
        self.effects = {split: replay.effect.cpu() for split, replay in replays.items()}
        self.patching = {split: EdgePatching(replay, wiring, max_memory) for split, replay in replays.items()}
        pairs = wiring.exists.nonzero()
        self.candidates = self._differing()[pairs[:, 0]]
        self._layer = _layer_of_targets(wiring)[pairs[:, 1]]

    def names(self, components: Sequence[int]) -> list[str]:
        return self.wiring.edge_names([*components])

    @torch.no_grad()
    def compute(self, masks: Tensor, split: Split) -> Tensor:
        chunks = [
            self._scores(runs, masks, self._roles_of(split, prompts)) - runs.replay.corrupt.scores
            for prompts, runs in self.patching[split].runs()
        ]
        return torch.cat(chunks, 1).cpu()

    def _roles_of(self, split: Split, prompts: Tensor) -> Tensor | None:
        """Roles of the prompts' tokens, int64 [n, t], if masks differ between them."""
        return None

    def _scores(
        self, runs: EdgeRuns, masks: Tensor, roles: Tensor | None
    ) -> Tensor:  # bool [copies, m] -> [copies, n]
        """Circuits start at the layer at which they first differ from their majority, which is run once."""
        base = majority(masks)
        run = MaskedRun(runs, self._grid(base[None]), roles=roles)
        scores = run.scores().expand(len(masks), -1).clone()
        layers = len(self.wiring.layers)
        differs = masks != base
        first = torch.where(differs, self._layer, layers).amin(1)
        at_once = max(1, SPREAD // runs.replay.n)
        for layer in first[first < layers].unique().tolist():
            earlier = run.written(self.wiring.layers[layer].source)
            for copies in (first == layer).nonzero()[:, 0].split(at_once):
                keep = self._grid(masks[copies])
                part = MaskedRun(runs, keep, layer=layer, earlier=earlier, roles=roles)
                scores[copies] = part.scores()
        return scores

    def _grid(
        self, masks: Tensor
    ) -> Tensor:  # [copies, m] -> [copies, sources, targets], on the model's device
        exists = self.wiring.exists
        grid = masks.new_zeros(len(masks), *exists.shape)
        grid[:, exists] = masks
        return grid.to(self.device)

    def gradient(
        self, masks: Tensor, weights: Tensor | None = None, wanted: Tensor | None = None
    ) -> MaskGradient:
        effect = self.effects["fit"]
        weights = torch.ones_like(effect) if weights is None else weights.to(effect)
        total = (effect * weights).sum().item()
        explained, gradient = torch.zeros(len(masks)), torch.zeros_like(masks, dtype=torch.float)
        wanted = torch.ones_like(masks[0], dtype=torch.bool) if wanted is None else wanted
        grid = self._grid(wanted[None]).flatten(0, -3).any(0)
        for of_chunk, runs in self.patching["fit"].runs():
            used = weights[of_chunk].nonzero()[:, 0]
            roles = self._roles_of("fit", of_chunk)
            at_once = self._prompts_at_once(runs, len(masks))
            for prompts in used.split(at_once) if len(used) else ():
                keep = masks.detach().to(runs.corrupt.written.dtype).requires_grad_()
                part, of_part = runs.select(prompts), None if roles is None else roles[prompts]
                with torch.enable_grad():
                    scores = MaskedRun(part, self._grid(keep), wanted=grid, roles=of_part).scores()
                    recovered = scores - part.replay.corrupt.scores
                    share = (recovered * weights[of_chunk][prompts].to(recovered)).sum(1) / total
                explained = explained + share.detach().cpu()
                gradient = gradient + torch.autograd.grad(share.sum(), keep)[0].cpu()
        return MaskGradient(explained, gradient)

    def _prompts_at_once(self, runs: EdgeRuns, copies: int) -> int:
        """Prompts whose activations of all layers fit into memory."""
        per_prompt = copies * len(self.wiring.layers) * bytes_per_prompt(runs.replay, self.wiring)
        return max(1, self.max_memory // per_prompt)

    def shuffled(self, seed: int) -> "EdgeObjective":
        replays: dict[Split, Replay] = {"fit": shuffle(self.replays["fit"], seed)}
        shuffled = EdgeObjective(replays, self.wiring, self.max_memory)
        shuffled.effects = {"fit": self.effects["fit"]}
        return shuffled

    def _differing(self) -> Tensor:  # -> bool [sources]
        """Whether a source writes something else in the clean run than in the corrupt one."""
        runs = (runs for patching in self.patching.values() for _, runs in patching.runs())
        changes = [(clean_stream(of.replay).written != of.corrupt.written).flatten(2) for of in runs]
        return torch.stack([change.any(2).any(0) for change in changes]).any(0).cpu()


def _layer_of_targets(wiring: Wiring) -> Tensor:  # -> int64 [targets]
    """The layer that reads each target; the last one for the logits, which are computed with it."""
    layers = torch.full((len(wiring.targets),), len(wiring.layers) - 1)
    for number, layer in enumerate(wiring.layers):
        layers[layer.target : layer.mlp_target + 1] = number
    return layers
