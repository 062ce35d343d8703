"""Edges between components: who reads whom.

A component writes to the residual stream and later components read it:

    sources   the embedding, every head, every MLP
    targets   every head's query, key and value input, every MLP, the logits

so the input of a target is a sum over sources, and an edge (u, v) is u's part in the input of v. Keys and values that
several query heads share are one target. GPT-2 small has 32,491 edges.

Keeping a set of edges means: along a kept edge v receives what u gives in this very run, along a dropped one what u gave in
the corrupt run. With all edges kept that is the clean run, with none the corrupt one.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.circuits.replay import Replay
from edgewise.core.errors import EdgewiseError
from edgewise.models.architecture import Layer, Parts, parts_of, weight_and_bias
from edgewise.models.hooks import replace_input, replace_output

KINDS = ("q", "k", "v")


@dataclass(frozen=True)
class Wiring:
    """All edges of a model. Sources and targets are numbered in the order in which they are computed."""

    parts: Parts
    parallel: bool
    """Whether an MLP reads the same residual stream as the attention beside it."""

    @cached_property
    def sources(self) -> list[str]:
        names = ["embedding"]
        for number, layer in enumerate(self.parts.layers):
            names += [f"L{number}H{head}" for head in range(layer.heads)] + [f"MLP {number}"]
        return names

    @cached_property
    def targets(self) -> list[str]:
        names = []
        for number, layer in enumerate(self.parts.layers):
            for kind in KINDS:
                count = layer.heads if kind == "q" else layer.kv_heads
                shared = "H" if count == layer.heads else "G"  # a group of heads shares keys and values
                names += [f"L{number}{shared}{head}.{kind}" for head in range(count)]
            names.append(f"MLP {number}")
        return [*names, "logits"]

    @cached_property
    def places(self) -> "list[Places]":
        """Of each layer."""
        found, source, target = [], 1, 0
        for layer in self.parts.layers:
            inputs = layer.heads + 2 * layer.kv_heads
            found.append(Places(source, layer.heads, target, inputs))
            source, target = source + layer.heads + 1, target + inputs + 1
        return found

    @cached_property
    def exists(self) -> Tensor:
        """Bool [sources, targets]: whether the target comes after the source."""
        mask = torch.zeros(len(self.sources), len(self.targets), dtype=torch.bool)
        for place in self.places:
            mask[: place.source, place.target : place.mlp + 1] = True
            if not self.parallel:
                mask[place.source : place.source + place.heads, place.mlp] = True
        mask[:, -1] = True
        return mask

    @property
    def count(self) -> int:
        return int(self.exists.sum())

    @cached_property
    def head_pairs(self) -> tuple[Tensor, int]:
        """For each edge between heads, the pair of heads it belongs to (else -1), int64 [sources, targets, most]; and how
        many pairs there are. Shared keys and values belong to all heads that read them."""
        heads = [layer.heads for layer in self.parts.layers]
        most = max(layer.heads // layer.kv_heads for layer in self.parts.layers)
        pairs = torch.full((*self.exists.shape, most), -1)
        source_head = {}
        for number, place in enumerate(self.places):
            for head in range(place.heads):
                source_head[place.source + head] = sum(heads[:number]) + head
        total = sum(heads)
        for number, (place, layer) in enumerate(zip(self.places, self.parts.layers, strict=True)):
            group = layer.heads // layer.kv_heads
            readers = [[h] for h in range(layer.heads)]
            readers += 2 * [[g * group + i for i in range(group)] for g in range(layer.kv_heads)]
            for target, read_by in enumerate(readers, place.target):
                for source, head in source_head.items():
                    if source < place.source:
                        for i, reader in enumerate(read_by):
                            pairs[source, target, i] = head * total + sum(heads[:number]) + reader
        return pairs, len(pairs[pairs >= 0].unique())


class Places(NamedTuple):
    """Where a layer's components stand."""

    source: int
    """Its first head among the sources; its MLP follows its heads."""
    heads: int
    target: int
    """Its first query among the targets; keys, values and the MLP follow."""
    inputs: int

    @property
    def mlp_source(self) -> int:
        return self.source + self.heads

    @property
    def mlp(self) -> int:
        return self.target + self.inputs


# ------------------------------------------------------------------------------------------------------------ recording


@dataclass(frozen=True)
class Stream:
    """What was written and read in one run, from the first token on that differs."""

    written: Tensor
    """By each source, [n, sources, t, D]; without biases, which no edge carries."""
    read: list[Tensor]
    """By each layer's attention, [n, t, D]."""
    read_by_mlp: list[Tensor]
    final: Tensor
    """By the logits, [n, t, D]."""


def wiring_of(model: PreTrainedModel, replay: Replay) -> tuple[Wiring, Stream, Stream]:
    """A model's edges, and what passed along them in the clean and in the corrupt run.

    Refuses a model whose residual stream is not the sum of what its components write: one that normalises after its
    sublayers instead of before.
    """
    parts = parts_of(model)
    clean = _stream(replay, parts, replay.clean.hidden[0])
    corrupt = _stream(replay, parts, replay.corrupt.hidden[0])
    if len(parts.layers) > 1 and not _sums_up(clean):
        raise EdgewiseError(
            f"{type(model).__name__} does not add its heads' outputs to the residual stream as they are, so its edges "
            "cannot be told apart; circuits of heads work (--no-edges)"
        )
    parallel = all(torch.equal(x, y) for x, y in zip(clean.read, clean.read_by_mlp, strict=True))
    return Wiring(parts, parallel), clean, corrupt


@torch.no_grad()
def _stream(replay: Replay, parts: Parts, embedding: Tensor) -> Stream:
    written, read, read_by_mlp = [embedding[:, None]], [], []
    final: list[Tensor] = []
    with ExitStack() as stack:
        for layer in parts.layers:
            stack.enter_context(_watch(layer.norm_1, read))
            stack.enter_context(_watch(layer.norm_2, read_by_mlp))
            stack.enter_context(replace_output(layer.mlp, lambda y: written.append(y[:, None])))
        stack.enter_context(_watch(parts.final_norm, final))

        def heads(number: int, y: Tensor) -> None:
            written.append(head_writes(parts.layers[number], y))

        replay.scores(0, embedding[None], heads, whole=True)
    if not parts.layers or len(written) != 1 + 2 * len(parts.layers):
        raise EdgewiseError("a layer's attention or MLP did not come by; its edges cannot be told apart")
    return Stream(torch.cat(written, 1), read, read_by_mlp, final[0])


def head_writes(layer: Layer, y: Tensor) -> Tensor:  # [n, heads, t, d] -> [n, heads, t, D]
    """What each head adds to the residual stream."""
    return y @ layer.out_weights.to(y)


@contextmanager
def _watch(module: Any, into: list[Tensor]) -> Iterator[None]:
    def note(x: Tensor) -> Tensor:
        into.append(x)
        return x

    with replace_input(module, note):
        yield


def _sums_up(stream: Stream) -> bool:
    """Whether the final residual stream is what was written, plus what is the same at all positions (biases)."""
    rest = stream.final - stream.written.sum(1)
    bias = rest[:1, :1]
    return bool((rest - bias).abs().max() <= 1e-3 * stream.final.abs().max())


# -------------------------------------------------------------------------------------------------- exact: keep some edges


@torch.no_grad()
def scores_keeping(
    replay: Replay, wiring: Wiring, corrupt: Stream, keep: Tensor
) -> Tensor:  # [n, sources, targets] -> [n]
    """The metric when only some edges are kept (true or 1), or a part of what passes along them."""
    keep_of = (keep.to(corrupt.written) * wiring.exists.to(keep.device)).transpose(1, 2)
    change = torch.zeros_like(
        corrupt.written
    )  # what each source writes, minus what it wrote in the corrupt run
    embedding = replay.clean.hidden[0]
    change[:, 0] = embedding - corrupt.written[:, 0]

    def received(base: Tensor, first: int, count: int, sources: int) -> Tensor:  # -> [n, count, t, D]
        """The inputs of some targets: all that is read in the corrupt run, changed along the kept edges."""
        along = keep_of[:, first : first + count, :sources]
        changes = (along @ change[:, :sources].flatten(2)).unflatten(2, change.shape[2:])
        return base[:, None] + changes

    def heads(number: int, y: Tensor) -> None:
        place, layer = wiring.places[number], wiring.parts.layers[number]
        written = head_writes(layer, y - replay.corrupt.outputs[number])
        change[:, place.source : place.mlp_source] = written

    with ExitStack() as stack:
        for number, (place, layer) in enumerate(zip(wiring.places, wiring.parts.layers, strict=True)):

            def inputs(number=number, place=place) -> Tensor:
                return received(corrupt.read[number], place.target, place.inputs, place.source)

            def mlp_reads(_: Tensor, number=number, place=place) -> Tensor:
                return received(corrupt.read_by_mlp[number], place.mlp, 1, place.mlp_source)[:, 0]

            def mlp_writes(y: Tensor, place=place) -> None:
                change[:, place.mlp_source] = y - corrupt.written[:, place.mlp_source]

            stack.enter_context(_splitting(layer, inputs))
            stack.enter_context(replace_input(layer.norm_2, mlp_reads))
            stack.enter_context(replace_output(layer.mlp, mlp_writes))
        last = len(wiring.targets) - 1
        stack.enter_context(
            replace_input(
                wiring.parts.final_norm, lambda _: received(corrupt.final, last, 1, change.shape[1])[:, 0]
            )
        )
        return replay.scores(0, embedding[None], heads, whole=True)[0]


@contextmanager
def _splitting(layer: Layer, inputs: Callable[[], Tensor]) -> Iterator[None]:
    """Let each head's query, key and value be made from an input of its own, [n, inputs, t, D]."""
    made: dict[int, Tensor] = {}

    def make(which: int, host: Tensor) -> Tensor:
        if not made:  # the first projection that is asked makes the others' too
            normed, first = layer.norm_1(inputs()), 0
            for kind in KINDS:
                weight, bias = layer.weights(kind)
                heads = normed[:, first : first + len(weight)] @ weight.to(normed)  # [n, heads, t, d]
                first += len(weight)
                heads = heads if bias is None else heads + bias.to(normed)
                place, columns = layer.columns[kind]
                width = weight_and_bias(layer.projections[place])[0].shape[0]
                whole = made.setdefault(place, host.new_empty(*host.shape[:2], width))
                whole[..., columns.flatten()] = heads.transpose(1, 2).flatten(2)
        return made.pop(which)

    with ExitStack() as stack:
        for which, projection in enumerate(layer.projections):
            stack.enter_context(replace_output(projection, lambda y, which=which: make(which, y)))
        yield


# ----------------------------------------------------------------------------------------- estimated: EAP and EAP-IG


def edge_scores(
    replay: Replay, wiring: Wiring, clean: Stream, corrupt: Stream, steps: int
) -> Tensor:  # -> [n, sources, targets]
    """Attribution of the metric to every edge: (u clean - u corrupt) . d metric / d (input of v), summed over positions.

    The gradient is the mean over `steps` runs whose embeddings go from the corrupt to the clean ones (EAP-IG); with one step
    it is the clean run's (EAP).
    """
    total = clean.written.new_zeros(replay.n, len(wiring.sources), len(wiring.targets))
    difference = clean.written - corrupt.written
    begin, end = replay.corrupt.hidden[0], replay.clean.hidden[0]
    for step in range(1, steps + 1):
        embedding = (begin + (end - begin) * (step / steps)).detach().requires_grad_()
        total += _gradient_scores(replay, wiring, difference, embedding)
    return (total / steps) * wiring.exists.to(total)


def _gradient_scores(replay: Replay, wiring: Wiring, difference: Tensor, embedding: Tensor) -> Tensor:
    parts = wiring.parts
    read: list[Tensor] = []
    made: list[list[Tensor]] = [[] for _ in parts.layers]  # by the projections
    mlp_inputs: list[Tensor] = []
    mlp_reads: list[Tensor] = []
    final: list[Tensor] = []

    def own(x: Tensor, into: list[Tensor]) -> Tensor:
        """A tensor of its own in the graph, so that its gradient is only that of what comes after here."""
        into.append(x.view_as(x))
        return into[-1]

    with torch.enable_grad(), ExitStack() as stack:
        for number, layer in enumerate(parts.layers):
            stack.enter_context(_watch(layer.norm_1, read))
            stack.enter_context(_watch(layer.norm_2, mlp_reads))
            for projection in layer.projections:
                stack.enter_context(replace_output(projection, lambda y, number=number: own(y, made[number])))
            stack.enter_context(replace_input(layer.mlp, lambda x: own(x, mlp_inputs)))
        stack.enter_context(replace_input(parts.final_norm, lambda x: own(x, final)))
        metric = replay.scores(0, embedding[None], whole=True)[0].sum()
        flat = [y for each in made for y in each]
        gradients = iter(torch.autograd.grad(metric, [*flat, *mlp_inputs, *final]))
    found = difference.new_zeros(len(difference), len(wiring.sources), len(wiring.targets))
    written = difference.flatten(2)  # [n, sources, t * D]

    def note(first: int, count: int, sources: int, gradient: Tensor) -> None:  # [n, count, t, D]
        found[:, :sources, first : first + count] = written[:, :sources] @ gradient.flatten(2).mT

    made_gradients = [[next(gradients) for _ in each] for each in made]
    for number, (place, layer) in enumerate(zip(wiring.places, parts.layers, strict=True)):
        back = []
        for kind in KINDS:
            which, columns = layer.columns[kind]
            weight, _ = layer.weights(kind)
            own_columns = made_gradients[number][which][..., columns.flatten()].unflatten(2, columns.shape)
            back.append(own_columns.transpose(1, 2) @ weight.to(own_columns).mT)  # [n, heads, t, D]
        through = _through_norm(layer.norm_1, read[number], torch.cat(back, 1))
        note(place.target, place.inputs, place.source, through)
    for number, (place, layer) in enumerate(zip(wiring.places, parts.layers, strict=True)):
        through = _through_norm(layer.norm_2, mlp_reads[number], next(gradients)[:, None])
        note(place.mlp, 1, place.mlp_source, through)
    note(len(wiring.targets) - 1, 1, len(wiring.sources), next(gradients)[:, None])
    return found


def _through_norm(
    norm: Any, x: Tensor, gradient: Tensor
) -> Tensor:  # [n, t, D], [n, m, t, D] -> [n, m, t, D]
    """The gradient with regard to what the norm reads, of m readers of what it gives."""
    with torch.enable_grad():
        copies = x.detach()[:, None].expand_as(gradient).clone().requires_grad_()
        return torch.autograd.grad(norm(copies), copies, gradient)[0]
