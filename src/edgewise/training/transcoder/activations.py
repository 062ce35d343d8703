"""Inputs and outputs of a model's MLPs: recorded on text, or replaced by a transcoder's."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.measure.forward import forward
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_input, replace_output
from edgewise.training.transcoder.transcoder import Transcoder, massive_limits


class MlpRecord(NamedTuple):
    """Inputs and outputs of the MLPs in one forward pass, in the order of layers; each [n, D]."""

    inputs: list[Tensor]
    outputs: list[Tensor]

    @property
    def x_and_y(self) -> tuple[Tensor, Tensor]:  # [L, n, D], [L, n, D]
        return torch.stack(self.inputs), torch.stack(self.outputs)


@contextmanager
def record_mlps(model: nn.Module) -> Iterator[MlpRecord]:
    """Record MLP inputs and outputs of one forward pass."""
    record = MlpRecord([], [])
    with ExitStack() as stack:
        for layer in architecture_of(model).layers:
            stack.enter_context(replace_input(layer.mlp_in, lambda x: _append(x, record.inputs)))
            stack.enter_context(replace_output(layer.mlp_out, lambda y: _append(y, record.outputs)))
        yield record


@torch.no_grad()
def mlp_activations(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:  # -> [L, n, D], [L, n, D]
    """x and y at every token, sequence after sequence. Sequences are packed: there is no padding to leave out."""
    with record_mlps(model) as record:
        _run_layers(model, batch)
    return record.x_and_y


@torch.no_grad()
def stream_shares(model: nn.Module, batch: Batch) -> Tensor:  # -> [L]
    """Share of the variance of the residual stream after each layer that its MLP wrote, at most 1. Tokens at which an output
    is massive are left out: from there on it dominates their stream."""
    parts = architecture_of(model)
    readers = [*(layer.module for layer in parts.layers[1:]), parts.final_norm]
    outputs: list[Tensor] = []
    streams: list[Tensor] = []
    with ExitStack() as stack:
        for layer, reader in zip(parts.layers, readers, strict=True):
            write = partial(_append_write, layer.multiplier, outputs)
            stack.enter_context(replace_output(layer.mlp_writer, write))
            stack.enter_context(replace_input(reader, lambda x: _append(x, streams)))
        _run_layers(model, batch)
    y = torch.stack(outputs)
    ordinary = (torch.linalg.vector_norm(y, dim=2) <= massive_limits(y)[:, None]).all(0)
    written, total = (xs[:, ordinary].var(1).sum(1) for xs in (y, torch.stack(streams)))
    return (written / total.clamp_min(1e-12)).clamp_max(1.0)


def _run_layers(model: nn.Module, batch: Batch) -> None:
    """Forward pass without the unembedding."""
    base: Any = model
    forward(base.base_model, batch)


def _append(x: Any, recorded: list[Tensor]) -> Any:
    if not isinstance(x, Tensor):
        raise EdgewiseError("an MLP of this model returns more than one tensor (a mixture of experts?)")
    recorded.append(x.flatten(0, -2).float())
    return x


def _append_write(multiplier: float, recorded: list[Tensor], y: Any) -> None:
    _append(y, recorded)
    recorded[-1] = multiplier * recorded[-1]


@contextmanager
def replaced_mlps(model: nn.Module, transcoder: Transcoder) -> Iterator[None]:
    """Replace the outputs of all MLPs by a transcoder's. Its features read the residual stream that the replacements have
    written to; massive outputs stay the MLPs' own."""
    pending: list[Tensor] = []  # reconstructions so far of the outputs from the current layer on

    def read(layer: int, x: Tensor) -> Tensor:
        if layer == 0:
            pending[:] = transcoder.output_bias.to(x.device)
        encoder, bias = transcoder.reads(layer)
        h = x.float() @ encoder.mT + bias
        a = torch.where(h > transcoder.threshold[layer], h, 0.0)
        written = (a @ transcoder.writes(layer).flatten(1)).split(transcoder.width, -1)
        for m, contribution in zip(transcoder.outputs_of(layer), written, strict=True):
            pending[m] = pending[m] + contribution
        return x

    def write(layer: int, y: Tensor) -> Tensor:
        reconstruction, massive = pending[layer].to(y.dtype), transcoder.is_massive(y, layer)
        return reconstruction if massive is None else torch.where(massive[..., None], y, reconstruction)

    with ExitStack() as stack:
        for number, layer in enumerate(architecture_of(model).layers):
            stack.enter_context(replace_input(layer.mlp_in, partial(read, number)))
            stack.enter_context(replace_output(layer.mlp_out, partial(write, number)))
        yield
