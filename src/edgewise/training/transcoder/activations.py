"""What the MLPs of a model read and give on rows of tokens."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.models.architecture import parts_of
from edgewise.models.hooks import replace_input, replace_output
from edgewise.training.transcoder.transcoder import Transcoder, massive_limits


def mlps_of(model: nn.Module) -> list[nn.Module]:
    return [layer.mlp for layer in parts_of(model).layers]


class Noted(NamedTuple):
    """What the MLPs of a run read and gave, in the order of layers; each [n, D]."""

    reads: list[Tensor]
    gives: list[Tensor]

    @property
    def x_and_y(self) -> tuple[Tensor, Tensor]:  # [L, n, D], [L, n, D]
        return torch.stack(self.reads), torch.stack(self.gives)


@contextmanager
def noting_mlps(model: nn.Module) -> Iterator[Noted]:
    """Note what MLPs do while the model runs once."""
    noted = Noted([], [])
    with ExitStack() as stack:
        for mlp in mlps_of(model):
            stack.enter_context(replace_input(mlp, lambda x: _noted(x, noted.reads)))
            stack.enter_context(replace_output(mlp, lambda y: _noted(y, noted.gives)))
        yield noted


@torch.no_grad()
def mlp_activations(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:  # -> [L, n, D], [L, n, D]
    """x and y of every token, one row after the other. Rows are packed: there is no padding in them to leave out."""
    with noting_mlps(model) as noted:
        _run(model, batch)
    return noted.x_and_y


@torch.no_grad()
def stream_shares(model: nn.Module, batch: Batch) -> Tensor:  # -> [L]
    """How much of the residual stream after each layer its MLP wrote: a ratio of variances, at most 1. Tokens at which an
    output is massive do not count: from there on it is most of their stream."""
    parts = parts_of(model)
    readers = [*(layer.module for layer in parts.layers[1:]), parts.final_norm]
    gives: list[Tensor] = []
    streams: list[Tensor] = []
    with ExitStack() as stack:
        for layer, reader in zip(parts.layers, readers, strict=True):
            stack.enter_context(replace_output(layer.mlp, lambda y: _noted(y, gives)))
            stack.enter_context(replace_input(reader, lambda x: _noted(x, streams)))
        _run(model, batch)
    y = torch.stack(gives)
    ordinary = (torch.linalg.vector_norm(y, dim=2) <= massive_limits(y)[:, None]).all(0)
    written, there = (xs[:, ordinary].var(1).sum(1) for xs in (y, torch.stack(streams)))
    return (written / there.clamp_min(1e-12)).clamp_max(1.0)


def _run(model: nn.Module, batch: Batch) -> None:
    """Run all layers; nothing is unembedded."""
    base: Any = model
    where = {} if batch.positions is None else {"position_ids": batch.positions}
    base.base_model(input_ids=batch.ids, use_cache=False, **where)


def _noted(x: Any, seen: list[Tensor]) -> Any:
    if not isinstance(x, Tensor):
        raise EdgewiseError("an MLP of this model gives more than one tensor (a mixture of experts?)")
    seen.append(x.flatten(0, -2).float())
    return x


@contextmanager
def replaced_mlps(model: nn.Module, transcoder: Transcoder) -> Iterator[None]:
    """Let a transcoder stand in for all MLPs: its features read the stream that its own earlier ones have written to.
    Massive outputs stay the MLPs' own."""
    pending: list[Tensor] = []  # what layers from the current one on have been given so far

    def read(layer: int, x: Tensor) -> Tensor:
        if layer == 0:
            pending[:] = transcoder.output_bias.to(x.device)
        encoder, bias = transcoder.reads(layer)
        h = x.float() @ encoder.mT + bias
        a = torch.where(h > transcoder.threshold[layer], h, 0.0)
        written = (a @ transcoder.writes(layer).flatten(1)).split(transcoder.width, -1)
        for m, part in enumerate(written, layer):
            pending[m] = pending[m] + part
        return x

    def give(layer: int, y: Tensor) -> Tensor:
        given, massive = pending[layer].to(y.dtype), transcoder.is_massive(y, layer)
        return given if massive is None else torch.where(massive[..., None], y, given)

    with ExitStack() as stack:
        for layer, mlp in enumerate(mlps_of(model)):
            stack.enter_context(replace_input(mlp, partial(read, layer)))
            stack.enter_context(replace_output(mlp, partial(give, layer)))
        yield
