"""A moving average of the weights that are trained: all along, nearly what they would become if their rate fell to zero."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


class Average:
    """The mean of the first weights it sees; once these are many, one that forgets the oldest little by little."""

    def __init__(self, weights: Iterable[nn.Parameter]):
        self._weights = [weight.detach() for weight in weights]
        self._means: list[Tensor] = []
        self.seen = 0

    @torch.no_grad()
    def update(self, over: float) -> float:
        """Take notice of the weights as they are; `over` is how many of the last ones count. Gives these ones' share."""
        if not self._means:
            self._means = [weight.clone() for weight in self._weights]
        self.seen += 1
        share = max(1 / self.seen, 1 / max(1.0, over))
        for mean, weight in zip(self._means, self._weights, strict=True):
            mean.lerp_(weight, share)
        return share

    @torch.no_grad()
    def swap(self) -> None:
        """Put the average in the place of the weights, and these in the place of the average."""
        for weight, mean in zip(self._weights, self._means, strict=False):
            kept = weight.clone()
            weight.copy_(mean)
            mean.copy_(kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def save(self, file: Path) -> None:
        means = {str(place): mean.contiguous() for place, mean in enumerate(self._means)}
        save_file(means, file, {"seen": str(self.seen)})

    def load(self, file: Path) -> None:
        with safe_open(file, "pt") as found:
            self.seen = int(found.metadata()["seen"])
            self._means = [
                found.get_tensor(str(place)).to(weight.device)
                for place, weight in enumerate(self._weights[: len(found.keys())])
            ]
