"""Residual streams of a run, taken apart: what every component writes, and what every component reads."""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.circuits.replay import Replay
from edgewise.circuits.wiring import Wiring
from edgewise.core.errors import EdgewiseError
from edgewise.models.architecture import Architecture, Layer, architecture_of
from edgewise.models.hooks import record_input, replace_output


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


@dataclass(frozen=True)
class EdgeRuns:
    """Recorded runs of n prompts together with the corrupt stream, which every patched edge is set to."""

    replay: Replay
    wiring: Wiring
    corrupt: Stream


def wiring_of(replay: Replay) -> Wiring:
    """A model's edges, read off its clean run.

    Refuses a model whose residual stream is not the sum of what its components write: one that normalises after its
    sublayers instead of before.
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
        raise EdgewiseError(
            f"{type(replay.model).__name__} does not add its heads' outputs to the residual stream as they are, so its "
            "edges cannot be told apart; circuits of heads work (`edges=False`)"
        )
    return stream


@torch.no_grad()
def _stream(replay: Replay, parts: Architecture, embedding: Tensor) -> Stream:  # embedding: [n, t, D]
    written, read, read_by_mlp, final = [embedding[:, None]], [], [], []

    def heads(number: int, y: Tensor) -> None:
        written.append(head_writes(parts.layers[number], y))

    with ExitStack() as stack:
        for layer in parts.layers:
            stack.enter_context(record_input(layer.norm_1, read))
            stack.enter_context(record_input(layer.norm_2, read_by_mlp))
            stack.enter_context(replace_output(layer.mlp, lambda y: written.append(y[:, None])))
        stack.enter_context(record_input(parts.final_norm, final))
        replay.scores(0, embedding[None], heads, all_positions=True)
    if not parts.layers or len(written) != 1 + 2 * len(parts.layers):
        raise EdgewiseError(
            "an attention module or MLP of a layer was not called, so the model's edges cannot be told apart; circuits of "
            "heads work (`edges=False`)"
        )
    return Stream(torch.cat(written, 1), read, read_by_mlp, final[0])


def head_writes(layer: Layer, y: Tensor) -> Tensor:  # [n, heads, t, d] -> [n, heads, t, D]
    """What each head adds to the residual stream, given its output."""
    return y @ layer.out_weights.to(y)


def _is_sum(stream: Stream) -> bool:
    """Whether the final residual stream is what was written, plus what is the same at all positions (biases)."""
    rest = stream.final - stream.written.sum(1)
    bias = rest[:1, :1]
    return bool((rest - bias).abs().max() <= 1e-3 * stream.final.abs().max())
