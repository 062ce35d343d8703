"""Residual streams of a run, taken apart: what every component writes, and what every component reads."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from edgewise.circuits.replay import Replay
from edgewise.circuits.wiring import Wiring
from edgewise.core.errors import UnsupportedArchitecture
from edgewise.models.architecture import Architecture, Layer, architecture_of
from edgewise.models.hooks import record_input, replace_output
from edgewise.models.norms import check_norm, norm_parameters


@dataclass(frozen=True)
class Stream:
    """The residual stream of one run, at the tokens of its `RecordedRun`."""

    written: Tensor
    """By each source, [n, sources, t, D]; without output biases, which no edge carries."""
    read: list[Tensor]
    """By each layer's attention, [n, t, D]."""
    read_by_mlp: list[Tensor]
    """By each layer's MLP, [n, t, D]."""
    final: Tensor
    """By the logits, [n, t, D]."""

    def select(self, index: Tensor | slice) -> "Stream":
        """The stream of some of the prompts."""
        read, read_by_mlp = ([x[index] for x in layers] for layers in (self.read, self.read_by_mlp))
        return Stream(self.written[index], read, read_by_mlp, self.final[index])


@dataclass(frozen=True)
class EdgeRuns:
    """Recorded runs of n prompts together with the corrupt stream, which every patched edge is set to."""

    replay: Replay
    wiring: Wiring
    corrupt: Stream

    def select(self, index: Tensor | slice) -> "EdgeRuns":
        """The runs of some of the prompts."""
        return EdgeRuns(self.replay.select(index), self.wiring, self.corrupt.select(index))


def wiring_of(replay: Replay) -> Wiring:
    """A model's edges, read off its clean run.

    Refuses a model whose residual stream is not the sum of what its components write.
    """
    clean = clean_stream(replay)
    parallel = all(torch.equal(x, y) for x, y in zip(clean.read, clean.read_by_mlp, strict=True))
    return Wiring(architecture_of(replay.model), parallel)


def record_edges(replay: Replay, wiring: Wiring | None = None) -> EdgeRuns:
    """Record the corrupt stream; pass `wiring` if the model's is known already."""
    wiring = wiring or wiring_of(replay)
    return EdgeRuns(replay, wiring, _stream(replay, wiring.parts, replay.corrupt.hidden[0]))


def clean_stream(replay: Replay) -> Stream:
    """Record the clean stream, and check that it is the sum of what was written."""
    parts = architecture_of(replay.model)
    stream = _stream(replay, parts, replay.clean.hidden[0])
    if len(parts.layers) > 1 and not _is_sum(stream):
        raise UnsupportedArchitecture(
            f"{type(replay.model).__name__} does more to its residual stream than add what heads and MLPs write, so its "
            "edges cannot be told apart; circuits of heads work (`edges=False`)"
        )
    return stream


@torch.no_grad()
def _stream(replay: Replay, parts: Architecture, embedding: Tensor) -> Stream:  # embedding: [n, t, D]
    written, read, read_by_mlp, final = [embedding[:, None]], [], [], []
    writes = HeadWrites(parts, lambda _, heads: written.append(heads))
    with ExitStack() as stack:
        for number, layer in enumerate(parts.layers):
            stack.enter_context(record_input(layer.attention_reader, read))
            stack.enter_context(record_input(layer.mlp_reader, read_by_mlp))
            stack.enter_context(writes.after_post_norm(number))
            write = partial(_append_mlp, written, embedding.shape, layer.multiplier)
            stack.enter_context(replace_output(layer.mlp_writer, write))
        stack.enter_context(record_input(parts.final_norm, final))
        replay.scores(0, embedding[None], writes.before_post_norm, all_positions=True)
    if not parts.layers or len(written) != 1 + 2 * len(parts.layers):
        raise UnsupportedArchitecture(
            "an attention module or MLP of a layer was not called, so the model's edges cannot be told apart; circuits of "
            "heads work (`edges=False`)"
        )
    read_by_mlp = [x.view_as(embedding) for x in read_by_mlp]
    return Stream(torch.cat(written, 1), read, read_by_mlp, final[0])


def _append_mlp(written: list[Tensor], shape: torch.Size, multiplier: float, y: Any) -> None:
    """Append what an MLP writes; a mixture of experts may also return its router's logits, and OPT flattens its batch."""
    y = y if isinstance(y, Tensor) else y[0]
    written.append(multiplier * y.reshape(shape)[:, None])


class HeadWrites:
    """What each head of each layer adds to the residual stream during a forward pass, [n, heads, t, D].

    Where a norm follows attention, a head's write is divided by the denominator of this very pass, so that the writes of all
    heads add up to the norm's output.
    """

    def __init__(self, parts: Architecture, write: Callable[[int, Tensor], None]) -> None:
        """write: Called with each layer's number and its heads' writes."""
        self._layers, self._write = parts.layers, write
        self._pending: dict[int, Tensor] = {}

    def before_post_norm(self, number: int, y: Tensor) -> None:
        """Edit of the tap, which gets head outputs, [n, heads, t, d]."""
        layer = self._layers[number]
        heads = head_writes(layer, y)
        if layer.post_attention is None:
            self._write(number, heads)
        else:
            self._pending[number] = heads

    @contextmanager
    def after_post_norm(self, number: int) -> Iterator[None]:
        """Hooks on the norm after a layer's attention, if it has one."""
        layer, inputs = self._layers[number], []
        if layer.post_attention is None:
            yield
            return
        norm = layer.post_attention
        parameters = norm_parameters(norm, next(norm.parameters()))

        def scaled(y: Tensor) -> None:
            x = inputs.pop()
            check_norm(norm, parameters, x, y)
            heads = parameters.centre(self._pending.pop(number))
            self._write(number, heads * parameters.scale(x, y)[:, None])

        with record_input(norm, inputs), replace_output(norm, scaled):
            yield


def head_writes(layer: Layer, y: Tensor) -> Tensor:  # [n, heads, t, d] -> [n, heads, t, D]
    """What each head adds to the residual stream, given its output; before the norm, if one follows."""
    writes = y @ layer.out_weights.to(y)
    return writes if layer.multiplier == 1 else layer.multiplier * writes


def _is_sum(stream: Stream) -> bool:
    """Whether the final residual stream is what was written, plus what is the same at all positions (biases)."""
    rest = stream.final - stream.written.sum(1)
    bias = rest[:1, :1]
    return bool((rest - bias).abs().max() <= 1e-3 * stream.final.abs().max())
