"""Training tokens in a random order: neighbours in a text are alike, and a step should see different ones."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.data import Batch, SequenceStream
from edgewise.measure.evaluation import parts, rows_at_once
from edgewise.training.transcoder.activations import mlp_activations
from edgewise.training.transcoder.store import sizes_of

MIXED = 16
"""Steps whose rows are run through the model, and mixed, together; fewer where that would take much memory."""
MIXED_BYTES = 1 << 28
"""The most that they take, unless one step alone does; twice that while they are put together, when there are no gradients.
Where that is not enough they are kept in bfloat16, whose rounding is a millionth of their variance."""


class MixedActivations:
    """What MLPs read and give at training tokens, a step's worth at a time; each process has its own.

    Only where the rows of the current mixture begin has to be kept: the mixture is made again after a resume.
    """

    def __init__(
        self,
        model: nn.Module,
        rows: SequenceStream,
        per_step: int,
        seed: int,
        index: int = 0,
        processes: int = 1,
    ):
        self.model, self.rows, self.per_step, self.seed = model, rows, per_step, seed
        self.index, self.processes = index, processes
        layers, width = sizes_of(model)
        step_numbers = 2 * layers * width * per_step * rows.context // processes
        self._kept_as = torch.float32 if 4 * step_numbers * MIXED <= MIXED_BYTES else torch.bfloat16
        self.mixed = max(1, min(MIXED, MIXED_BYTES // (self._kept_as.itemsize * step_numbers)))
        self.load_state_dict({"rows": copy.deepcopy(rows.state_dict()), "mixture": 0, "step": 0})

    def take(self) -> tuple[Tensor, Tensor]:  # -> [L, n, D], [L, n, D]
        """One step's tokens."""
        if self._mixed is None:
            self._mixed = self._mix()
        x, y, order = self._mixed
        which = order[self._step]
        self._step += 1
        if self._step == self.mixed:
            self._begin = copy.deepcopy(self.rows.state_dict())
            self._mixture, self._step, self._mixed = self._mixture + 1, 0, None
        return x[:, which].float(), y[:, which].float()

    def _mix(self) -> tuple[Tensor, Tensor, Tensor]:  # -> [L, N, D], [L, N, D], [mixed, n]
        rows = self.mixed * self.per_step
        batch, count = self.rows.take(rows), rows // self.processes
        mine = slice(self.index * count, (self.index + 1) * count)
        x, y = activations(self.model, batch.select(mine))
        x, y = x.to(self._kept_as), y.to(self._kept_as)
        draw = torch.Generator().manual_seed((self.seed * 1_000_003 + self._mixture) * 1009 + self.index)
        order = torch.randperm(x.shape[1], generator=draw)
        return x, y, order.view(self.mixed, -1).to(x.device)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._begin, "mixture": self._mixture, "step": self._step, "mixed": self.mixed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begin, self._mixture, self._step = copy.deepcopy(state["rows"]), state["mixture"], state["step"]
        self.mixed = state.get("mixed", self.mixed)  # what was begun is gone through as it was begun
        self.rows.load_state_dict(copy.deepcopy(state["rows"]))
        self._mixed: tuple[Tensor, Tensor, Tensor] | None = None


def activations(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:  # -> [L, n, D], [L, n, D]
    """Of a batch of any size, a few rows at a time."""
    device = next(model.parameters()).device
    found = [mlp_activations(model, part) for part in parts(batch, rows_at_once(batch), device)]
    x, y = (torch.cat(each, 1) for each in zip(*found, strict=True))
    return x, y
