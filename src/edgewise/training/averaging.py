"""A moving average of the trained weights: at any step nearly what they would become if the learning rate fell to zero."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from edgewise.core.errors import EdgewiseError

FILE = "average.safetensors"


def local_part(weight: Tensor) -> Tensor:
    """A weight, or of one that FSDP has sharded the part that this process has: the same memory, without gradients."""
    weight = weight.detach()
    return weight.to_local() if isinstance(weight, DTensor) else weight


class Average:
    """The mean of all weights while they are few, then an exponential moving average. Each process averages its shards."""

    def __init__(self, weights: Iterable[nn.Parameter]):
        weights = list(weights)
        self._is_sharded = any(isinstance(weight, DTensor) for weight in weights)
        self._weights = [local_part(weight) for weight in weights]
        self._means: list[Tensor] = []
        self.updates = 0

    @torch.no_grad()
    def update(self, window: float) -> float:
        """Add the present weights to an average over about `window` updates; returns their share of it."""
        if not self._means:
            self._means = [weight.clone() for weight in self._weights]
        self.updates += 1
        share = max(1 / self.updates, 1 / max(1.0, window))
        for mean, weight in zip(self._means, self._weights, strict=True):
            mean.lerp_(weight, share)
        return share

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights and their average, if there is one."""
        for weight, mean in zip(self._weights, self._means, strict=False):
            kept = weight.clone()
            weight.copy_(mean)
            mean.copy_(kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The average in the place of the weights, inside a `with` block."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def save(self, file: Path) -> None:
        means = {str(i): mean.contiguous() for i, mean in enumerate(self._means)}
        save_file(means, file, {"updates": str(self.updates)})

    def load(self, file: Path) -> None:
        with safe_open(file, "pt") as saved:
            self.updates = int(saved.metadata()["updates"])
            self._means = [
                saved.get_tensor(str(i)).to(weight.device)
                for i, weight in enumerate(self._weights[: len(saved.keys())])
            ]

    def add_to_snapshots(self, accelerator: Accelerator) -> None:
        """Save and load the average together with the accelerator's state."""

        name = FILE
        if self._is_sharded:
            name = f"average-{accelerator.process_index}-of-{accelerator.num_processes}.safetensors"

        def save(_models: Any, _weights: Any, folder: str) -> None:
            if self._is_sharded or accelerator.is_main_process:
                self.save(Path(folder, name))

        def load(_models: Any, folder: str) -> None:
            if Path(folder, name).is_file():
                self.load(Path(folder, name))
            elif any(Path(folder).glob("average*")):  # a run that began without an average begins one now
                raise EdgewiseError(
                    "the average of the weights was saved in other shards; resume with as many processes as before"
                )

        accelerator.register_save_state_pre_hook(save)
        accelerator.register_load_state_pre_hook(load)
