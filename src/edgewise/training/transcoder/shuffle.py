"""Shuffle buffer of activations: neighbouring tokens of a text are alike, and a step should see different ones."""

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.core.devices import upload
from edgewise.data import Batch, SequenceStream
from edgewise.measure.forward import sequences_per_pass
from edgewise.training.transcoder.activations import mlp_activations
from edgewise.training.transcoder.disturbed import disturbed_heads
from edgewise.training.transcoder.store import sizes_of

BUFFER_STEPS = 16
"""Steps whose activations are computed and shuffled together; fewer where that would take much memory."""
BUFFER_BYTES = 1 << 28
"""Largest size of the buffer, unless one step alone needs more; twice that while it is filled, when there are no gradients.
Where that is not enough, activations are kept in bfloat16, whose rounding is a millionth of their variance."""


class ShuffledActivations:
    """MLP inputs and outputs at training tokens, half of them in disturbed passes, one step's at a time.

    Each process has its own.

    A snapshot holds only where the current buffer's text begins: the buffer is filled again after a resume.
    """

    def __init__(
        self,
        model: nn.Module,
        sequences: SequenceStream,
        batch_size: int,
        seed: int,
        *,
        index: int = 0,
        processes: int = 1,
        buffer_bytes: int = BUFFER_BYTES,
    ):
        """`index`: of this process."""
        self.model, self.sequences, self.batch_size, self.seed = model, sequences, batch_size, seed
        self.index, self.processes = index, processes
        layers, width = sizes_of(model)
        step_numbers = 2 * layers * width * batch_size * sequences.context // processes
        fits = torch.float32.itemsize * step_numbers * BUFFER_STEPS <= buffer_bytes
        self._dtype = torch.float32 if fits else torch.bfloat16
        self.buffer_steps = max(1, min(BUFFER_STEPS, buffer_bytes // (self._dtype.itemsize * step_numbers)))
        self.load_state_dict({"sequences": copy.deepcopy(sequences.state_dict()), "buffer": 0, "step": 0})

    def next(self) -> tuple[Tensor, Tensor]:  # -> [L, n, D], [L, n, D]
        """MLP inputs and outputs at one step's tokens."""
        if self._filled is None:
            self._filled = self._fill()
        x, y, order = self._filled
        tokens = order[self._step]
        self._step += 1
        if self._step == self.buffer_steps:
            self._begin = copy.deepcopy(self.sequences.state_dict())
            self._buffer, self._step, self._filled = self._buffer + 1, 0, None
        return x[:, tokens].float(), y[:, tokens].float()

    def _fill(self) -> tuple[Tensor, Tensor, Tensor]:  # -> [L, N, D], [L, N, D], [buffer_steps, n]
        """A buffer of activations, and the tokens of each step."""
        n_sequences = self.buffer_steps * self.batch_size
        batch, share = self.sequences.take(n_sequences), n_sequences // self.processes
        own = batch.select(slice(self.index * share, (self.index + 1) * share))
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self._buffer) * 1009 + self.index)
        x, y = activations(self.model, own, generator)
        x, y = x.to(self._dtype), y.to(self._dtype)
        order = torch.randperm(x.shape[1], generator=generator)
        return x, y, upload(order.view(self.buffer_steps, -1), x.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "sequences": self._begin,
            "buffer": self._buffer,
            "step": self._step,
            "buffer_steps": self.buffer_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begin, self._buffer, self._step = (
            copy.deepcopy(state["sequences"]),
            state["buffer"],
            state["step"],
        )
        self.buffer_steps = state.get(
            "buffer_steps", self.buffer_steps
        )  # a buffer keeps the size it was begun with
        self.sequences.load_state_dict(copy.deepcopy(state["sequences"]))
        self._filled: tuple[Tensor, Tensor, Tensor] | None = None


def activations(
    model: nn.Module, batch: Batch, disturbing: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:  # -> [L, n, D], [L, n, D]
    """MLP inputs and outputs of a batch of any size, computed in micro-batches. With a generator, of disturbed passes."""
    device = next(model.parameters()).device
    parts = []
    for micro_batch in batch.micro_batches(sequences_per_pass(batch), device):
        with (
            nullcontext() if disturbing is None else disturbed_heads(model, len(micro_batch.ids), disturbing)
        ):
            parts.append(mlp_activations(model, micro_batch))
    x, y = (torch.cat(tensors, 1) for tensors in zip(*parts, strict=True))
    return x, y
