"""Inputs and outputs of a model's MLPs: recorded on text, or replaced by a transcoder's."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.data import Batch
from edgewise.measure.fisher import fisher_gradients
from edgewise.measure.forward import forward
from edgewise.models.architecture import architecture_of
from edgewise.models.hooks import replace_input, replace_output
from edgewise.training.transcoder.transcoder import Transcoder

_FISHER_TOKENS = 512
"""Tokens of one backward pass, by which the cost of errors is measured: their activations are all kept."""


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


def error_costs(model: nn.Module, transcoder: Transcoder, batch: Batch, seed: int) -> Tensor:  # -> [L]
    """What an error of each layer's MLP costs the model's predictions, in nats per fraction of variance unexplained.

    To second order, in no particular direction, KL = 1/2 output_scale^2 E|g|^2 mse (`measure.fisher`). Massive outputs are
    left out, and the largest hundredth of the |g|^2 of each layer, which would be most of their mean.
    """
    device, generator = next(model.parameters()).device, torch.Generator().manual_seed(seed)
    modules = [layer.mlp_out for layer in architecture_of(model).layers]
    batch = batch.select(slice(None), slice(_FISHER_TOKENS))
    squares: list[Tensor] = []  # [L, n]
    for micro_batch in batch.micro_batches(max(1, _FISHER_TOKENS // batch.ids.shape[1]), device):
        gradients = fisher_gradients(model, modules, micro_batch, generator)
        squares.append(torch.stack([g.float().square().sum(-1).flatten() for g in gradients]).cpu())
        massive = transcoder.is_massive(mlp_activations(model, micro_batch)[1].cpu())
        if massive is not None:
            squares[-1] = squares[-1].masked_fill(massive, torch.nan)
    means = torch.stack([_trimmed_mean(layer) for layer in torch.cat(squares, 1)])
    return transcoder.output_scale.cpu().square() * means / 2


def _trimmed_mean(x: Tensor) -> Tensor:  # [n] -> []
    """Mean of all but the largest hundredth, NaNs left out."""
    ordered = x[~x.isnan()].sort().values
    return ordered[: math.ceil(0.99 * len(ordered))].mean()


def _run_layers(model: nn.Module, batch: Batch) -> None:
    """Forward pass without the unembedding."""
    base: Any = model
    forward(base.base_model, batch)


def _append(x: Any, recorded: list[Tensor]) -> Any:
    if not isinstance(x, Tensor):
        raise EdgewiseError("an MLP of this model returns more than one tensor (a mixture of experts?)")
    recorded.append(x.flatten(0, -2).float())
    return x


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
