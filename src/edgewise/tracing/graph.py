"""The attribution graph: who contributes how much to whom, exactly.

Sources write to the residual stream of the frozen pass: the embedding of each token, each active feature (to the MLP
outputs of its own and later layers), and what the transcoder misses of each MLP's output (an error). Targets read it: active
features and logits. The weight of an edge is the source's contribution to the target's preactivation or logit, so that

    sum over sources + bias = preactivation (logit)

and whatever is not a source, all constants, is in the bias. Attention is inside the edges; `shares.py` takes it out.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from edgewise.core.errors import EdgewiseError
from edgewise.tracing.linearised import Frozen
from edgewise.training.transcoder.transcoder import Transcoder

BATCH_BYTES = 256 << 20
"""Of gradients at once."""
CLOSES = 1e-3
"""Relative; beyond, a trace is refused: something about the model was not understood."""


@dataclass(frozen=True)
class Features:
    """Active features, by layer."""

    layer: Tensor  # int64 [n]
    number: Tensor  # int64 [n]
    position: Tensor  # int64 [n]
    activation: Tensor  # [n]

    def __len__(self) -> int:
        return len(self.layer)

    def of_layer(self, layer: int) -> slice:
        first, last = torch.searchsorted(self.layer, torch.tensor([layer, layer + 1])).tolist()
        return slice(first, last)


@dataclass(frozen=True)
class Readout:
    """The logits that are explained: each minus the mean over the vocabulary, which no probability depends on."""

    tokens: Tensor  # int64 [K]
    probability: Tensor  # [K]
    direction: Tensor  # [K, D]
    bias: Tensor  # [K]
    value: Tensor  # [K]: what the model gave

    @property
    def weights(self) -> Tensor:  # [K]
        """How much each counts: its probability among them."""
        return self.probability / self.probability.sum()


@dataclass(frozen=True)
class Graph:
    """All edges of a prompt. Sources: T embeddings, n features, L * T errors. Targets: the n features, then K logits."""

    frozen: Frozen
    transcoder: Transcoder
    features: Features
    errors: Tensor
    """What the transcoder misses of the MLPs' outputs, [L, T, D]."""
    readout: Readout
    edges: Tensor
    """[targets, sources]"""
    bias: Tensor
    """[targets]"""
    value: Tensor
    """Of the targets: preactivation, logit."""

    @property
    def sources(self) -> int:
        return self.edges.shape[1]

    @property
    def targets(self) -> int:
        return self.edges.shape[0]

    @property
    def feature_sources(self) -> slice:
        return slice(self.frozen.length, self.frozen.length + len(self.features))

    @cached_property
    def closure(self) -> float:
        """The largest error of a target's sum, relative to the largest value of its kind."""
        off = (self.edges.double().sum(1) + self.bias - self.value).abs()
        count = len(self.features)
        parts = [(off[:count], self.value[:count]), (off[count:], self.value[count:])]
        return max(
            ((o.max() / v.abs().max().clamp_min(1e-6)).item() for o, v in parts if len(o)), default=0.0
        )

    # ---------------------------------------------------------------------------------------- where sources and targets are

    def written_at(self, sources: Tensor) -> tuple[Tensor, Tensor]:  # int64 [m] -> 2 x int64 [m]
        """The layer whose MLP writes each source first, -1 for embeddings, and its position."""
        length = self.frozen.length
        layers, positions = torch.arange(len(self.frozen.layers)), torch.arange(length)
        layer = [torch.full((length,), -1), self.features.layer, layers.repeat_interleave(length)]
        position = [positions, self.features.position, positions.repeat(len(layers))]
        return torch.cat(layer)[sources], torch.cat(position)[sources]

    def read_at(self, targets: Tensor) -> Tensor:  # int64 [m] -> int64 [m]
        """The layer whose MLP reads each target; the last one for logits, which come after it."""
        last = torch.full((len(self.readout.tokens),), len(self.frozen.layers) - 1)
        return torch.cat([self.features.layer, last])[targets]

    # -------------------------------------------------------------------------------------- sources and targets as vectors

    def written(self, sources: Tensor, layer: int) -> Tensor | None:  # int64 [m] -> [m, T, D]
        """What some sources write where MLP `layer` writes; None if none of them does."""
        length, count = self.frozen.length, len(self.features)
        out = torch.zeros(len(sources), length, self.frozen.width)
        feature = sources - length
        is_feature = (feature >= 0) & (feature < count)
        rows = is_feature.nonzero()[:, 0]
        rows = rows[self.features.layer[feature[rows]] <= layer]
        found = feature[rows]
        for own in self.features.layer[found].unique().tolist():
            which = self.features.layer[found] == own
            ids, at = found[which], rows[which]
            vector = self.transcoder.writes_to(layer, own, self.features.number[ids])
            out[at, self.features.position[ids]] = vector * self.features.activation[ids, None]
        error = feature - count
        for row in ((error >= 0) & (error // length == layer)).nonzero()[:, 0].tolist():
            position = int(error[row]) % length
            out[row, position] = self.errors[layer, position]
        return out if out.any() else None

    def started(self, sources: Tensor) -> Tensor:  # int64 [m] -> [m, T, D]
        """What some sources give to the first layer: the embeddings."""
        out = torch.zeros(len(sources), self.frozen.length, self.frozen.width)
        rows = (sources < self.frozen.length).nonzero()[:, 0]
        out[rows, sources[rows]] = self.frozen.embedding[sources[rows]]
        return out

    def read(self, targets: Tensor, layer: int) -> Tensor | None:  # int64 [m] -> [m, T, D]
        """The gradient of some targets at what MLP `layer` reads, before its norm."""
        is_here = targets < len(self.features)
        rows = is_here.nonzero()[:, 0]
        rows = rows[self.features.layer[targets[rows]] == layer]
        if not len(rows):
            return None
        out = torch.zeros(len(targets), self.frozen.length, self.frozen.width)
        ids = targets[rows]
        encoders, _ = self.transcoder.reads(layer)
        out[rows, self.features.position[ids]] = encoders[self.features.number[ids]]
        return self.frozen.layers[layer].norm_2.pull(out)

    def ended(self, targets: Tensor) -> Tensor:  # int64 [m] -> [m, T, D]
        """The gradient of some targets at the final residual stream: the logits."""
        out = torch.zeros(len(targets), self.frozen.length, self.frozen.width)
        rows = (targets >= len(self.features)).nonzero()[:, 0]
        out[rows, -1] = self.readout.direction[targets[rows] - len(self.features)]
        return self.frozen.final_norm.pull(out)


@torch.no_grad()
def build_graph(frozen: Frozen, transcoder: Transcoder, readout: Readout) -> Graph:
    """All edges, by one walk back for each target, many targets at a time."""
    features, preactivation = _active(frozen, transcoder)
    errors = frozen.mlp_outputs - transcoder.decode(transcoder.encode(frozen.mlp_inputs))
    count, length = len(features), frozen.length
    if not count:
        raise EdgewiseError(
            "no feature of the transcoder is active on this prompt: was it trained on text like it?"
        )
    targets = count + len(readout.tokens)
    bias, value = torch.empty(targets), torch.cat([preactivation, readout.value])
    for layer in range(len(frozen.layers)):
        part = features.of_layer(layer)
        encoders, own = transcoder.reads(layer)
        picked = features.number[part]
        bias[part] = encoders[picked] @ frozen.layers[layer].norm_2.shift + own[picked]
    bias[count:] = readout.direction @ frozen.final_norm.shift + readout.bias
    graph = Graph(
        frozen,
        transcoder,
        features,
        errors,
        readout,
        torch.zeros(targets, length + count + errors.shape[0] * length),
        bias,
        value,
    )
    batch = max(1, BATCH_BYTES // (4 * length * frozen.width * (len(frozen.layers) + 4)))
    for some in torch.arange(targets).split(batch):
        _fill(graph, some)
    if not graph.closure < CLOSES:
        raise EdgewiseError(
            f"the contributions do not add up to the model's values ({graph.closure:.1%} off): its logits are no linear "
            "readout of its residual stream, and it cannot be traced"
        )
    return graph


def _active(frozen: Frozen, transcoder: Transcoder) -> tuple[Features, Tensor]:
    """The active features, and the preactivation of each."""
    activation = transcoder.encode(frozen.mlp_inputs)  # [L, T, F]
    layer, position, number = activation.nonzero(as_tuple=True)
    values = activation[layer, position, number]
    preactivation = transcoder.preactivations(frozen.mlp_inputs)[layer, position, number]
    return Features(layer, number, position, values), preactivation


def _fill(graph: Graph, targets: Tensor) -> None:
    """The edges into some targets."""
    frozen, features, transcoder = graph.frozen, graph.features, graph.transcoder
    length, count = frozen.length, len(features)
    at_mlps: dict[int, Tensor] = {}

    def visit(layer: int, at_mlp: Tensor, at_attention: Tensor, at_heads: Tensor) -> None:
        at_mlps[layer] = at_mlp
        graph.bias[targets] += torch.einsum("mtd,d->m", at_mlp, transcoder.output_bias[layer])
        graph.bias[targets] += torch.einsum("mtd,td->m", at_attention, frozen.layers[layer].constant)

    at_start = frozen.pull(graph.ended(targets), lambda layer, _: graph.read(targets, layer), visit)
    graph.edges[targets, :length] = (at_start * frozen.embedding).sum(-1)
    for layer, at_mlp in at_mlps.items():
        first = length + count + layer * length
        graph.edges[targets, first : first + length] = (at_mlp * graph.errors[layer]).sum(-1)
    for layer in range(len(frozen.layers)):
        part = features.of_layer(layer)
        number, position = features.number[part], features.position[part]
        total = torch.zeros(len(targets), len(number))
        places = [(p, (position == p).nonzero()[:, 0]) for p in position.unique().tolist()]
        for later in range(layer, len(frozen.layers)):
            writes = transcoder.writes_to(later, layer, number)
            for p, at in places:  # one product for each position: nothing is gathered for pairs
                total[:, at] += at_mlps[later][:, p] @ writes[at].T
        graph.edges[targets, length + part.start : length + part.stop] = total * features.activation[part]
