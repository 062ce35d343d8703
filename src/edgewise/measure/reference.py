"""A dense model's predictions on a fixed text, to compare a twin with again and again."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from edgewise.data.batch import Batch
from edgewise.measure.forward import eval_mode, run_model

_MAX_BYTES = 256 << 20


class Reference:
    """The logits of a dense model on the sequences of one text, which are known by their index.

    The hidden states that the unembedding reads are kept, [t, width] for a sequence, up to `max_bytes` of them; logits,
    which are vocabulary / width times as large, are computed from these each time. That is exact, and saves the layers'
    part of the forward pass.
    """

    def __init__(self, model: nn.Module, max_bytes: int = _MAX_BYTES):
        self.model, self._max_bytes = model, max_bytes
        self._hidden: dict[int, Tensor] = {}  # by sequence: [t, width]
        self._output_type: type[Any] = BaseModelOutputWithPast  # of the base model
        self._bytes = 0
        self._base: Any = getattr(model, "base_model", model)
        self._replays: bool | None = None  # whether hidden states give the logits; None: not tried yet

    def __len__(self) -> int:
        """How many sequences' hidden states are kept."""
        return len(self._hidden)

    @torch.no_grad()
    def logits(self, first: int, batch: Batch) -> Tensor:  # -> [n, t, vocabulary]
        """Logits on the sequences `first`, `first` + 1, ... of the text, which are `batch`."""
        indices = range(first, first + len(batch.ids))
        with eval_mode(self.model):
            if all(i in self._hidden for i in indices) and self._can_replay(batch, first):
                return self._replay(batch, torch.stack([self._hidden[i] for i in indices]))
            with self.recording(first):
                return run_model(self.model, batch)

    @contextmanager
    def recording(self, first: int = 0) -> Iterator[None]:
        """Keep the hidden states of all forward passes inside a `with` block, over consecutive sequences from `first` on."""
        position = first

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal position
            self._output_type = type(output)
            for hidden in output.last_hidden_state:
                if self._replays is not False and position not in self._hidden:
                    self._keep(position, hidden)
                position += 1

        if self._base is self.model:  # no unembedding apart from the layers
            yield
            return
        hook = self._base.register_forward_hook(keep)
        try:
            yield
        finally:
            hook.remove()

    def _keep(self, index: int, hidden: Tensor) -> None:
        size = hidden.numel() * hidden.element_size()
        if self._bytes + size <= self._max_bytes:
            self._hidden[index] = hidden.detach().clone()
            self._bytes += size

    def _can_replay(self, batch: Batch, first: int) -> bool:
        """Whether this model's logits depend on its last hidden states alone: tried once, on one sequence."""
        if self._replays is None:
            one = batch.select(slice(1))
            replayed, own = self._replay(one, self._hidden[first][None]), run_model(self.model, one)
            self._replays = replayed.shape == own.shape and torch.allclose(
                replayed, own, rtol=1e-4, atol=1e-4
            )
            if not self._replays:
                self._hidden.clear()
        return self._replays

    def _replay(self, batch: Batch, hidden: Tensor) -> Tensor:
        """What the model makes of last hidden states, [n, t, width]: its unembedding, and scaling or capping after it."""
        self._base.forward = lambda *args, **kwargs: self._output_type(last_hidden_state=hidden)
        try:
            return run_model(self.model, batch)
        finally:
            del self._base.forward  # the class's own is there again
