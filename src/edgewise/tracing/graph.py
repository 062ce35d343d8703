"""The attribution graph: what each source contributes to each target, exactly.

Sources write to the residual stream of the linearised pass: the embedding of each token, each active feature (to the MLP
outputs of its own and later layers), and the transcoder's reconstruction error of each MLP output. Targets read it: active
features and logits. The weight of a link (an edge of this graph; "edge" alone means an attention edge in this package) is
the source's contribution to the target's preactivation or logit, so that

    sum over sources + bias = preactivation (logit)

and whatever is not a source, all constants, is in the bias. Attention is inside the links; `head_shares.py` splits it.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from edgewise.core.errors import EdgewiseError
from edgewise.models.linearised_pass import LinearisedPass
from edgewise.tracing.target_logits import TargetLogits
from edgewise.training.transcoder.transcoder import Transcoder

BATCH_BYTES = 256 << 20
"""Of gradients at once."""
MAX_CLOSURE = 1e-3
"""Relative error of the sums above which a model is refused: it is not the linear function that the graph assumes."""


@dataclass(frozen=True)
class ActiveFeatures:
    """The n active features, sorted by layer."""

    layer: Tensor  # int64 [n]
    index: Tensor  # int64 [n]: in the layer's dictionary
    position: Tensor  # int64 [n]
    activation: Tensor  # [n]

    def __len__(self) -> int:
        return len(self.layer)

    def of_layer(self, layer: int) -> slice:
        first, last = torch.searchsorted(self.layer, torch.tensor([layer, layer + 1])).tolist()
        return slice(first, last)


@dataclass(frozen=True)
class Graph:
    """All links of a prompt. Sources: T embeddings, n features, L * T errors. Targets: the n features, then K logits."""

    linear: LinearisedPass
    transcoder: Transcoder
    features: ActiveFeatures
    errors: Tensor
    """MLP outputs minus the transcoder's reconstruction, [L, T, D]."""
    logits: TargetLogits
    adjacency: Tensor
    """Weights of all links, [targets, sources]."""
    bias: Tensor
    """[targets]"""
    value: Tensor
    """Preactivations and logits, [targets]."""

    @property
    def n_sources(self) -> int:
        return self.adjacency.shape[1]

    @property
    def n_targets(self) -> int:
        return self.adjacency.shape[0]

    @property
    def feature_sources(self) -> slice:
        return slice(self.linear.length, self.linear.length + len(self.features))

    @cached_property
    def closure(self) -> float:
        """The largest error of a target's sum, relative to the largest preactivation or logit."""
        error = (self.adjacency.sum(1) + self.bias - self.value).abs()
        count = len(self.features)
        kinds = [(error[:count], self.value[:count]), (error[count:], self.value[count:])]
        return max(
            ((e.max() / v.abs().max().clamp_min(1e-6)).item() for e, v in kinds if len(e)), default=0.0
        )

    # ------------------------------------------------------------------------------ layers and positions of sources, targets

    def source_location(self, sources: Tensor) -> tuple[Tensor, Tensor]:  # int64 [m] -> 2 x int64 [m]
        """The layer whose MLP writes each source first, -1 for embeddings; and its position."""
        length = self.linear.length
        layers, positions = torch.arange(len(self.linear.layers)), torch.arange(length)
        layer = [torch.full((length,), -1), self.features.layer, layers.repeat_interleave(length)]
        position = [positions, self.features.position, positions.repeat(len(layers))]
        return torch.cat(layer)[sources], torch.cat(position)[sources]

    def target_layer(self, targets: Tensor) -> Tensor:  # int64 [m] -> int64 [m]
        """The layer whose MLP reads each target; the last one for logits, which come after it."""
        last = torch.full((len(self.logits.tokens),), len(self.linear.layers) - 1)
        return torch.cat([self.features.layer, last])[targets]

    # --------------------------------------------------------------------------------------- sources and targets as vectors

    def source_embedding(self, sources: Tensor) -> Tensor:  # int64 [m] -> [m, T, D]
        """What some sources write to the embedding."""
        out = torch.zeros(len(sources), self.linear.length, self.linear.width)
        rows = (sources < self.linear.length).nonzero()[:, 0]
        out[rows, sources[rows]] = self.linear.embedding[sources[rows]]
        return out

    def source_write(self, sources: Tensor, layer: int) -> Tensor | None:  # int64 [m] -> [m, T, D]
        """What some sources write to the output of MLP `layer`; None if none of them does."""
        length, count = self.linear.length, len(self.features)
        out = torch.zeros(len(sources), length, self.linear.width)
        feature = sources - length
        rows = ((feature >= 0) & (feature < count)).nonzero()[:, 0]
        rows = rows[self.features.layer[feature[rows]] <= layer]
        features = feature[rows]
        for own_layer in self.features.layer[features].unique().tolist():
            of_layer = self.features.layer[features] == own_layer
            if layer not in self.transcoder.outputs_of(own_layer):
                continue
            ids, at = features[of_layer], rows[of_layer]
            vectors = self.transcoder.writes_to(layer, own_layer, self.features.index[ids])
            out[at, self.features.position[ids]] = vectors * self.features.activation[ids, None]
        error = feature - count
        for row in ((error >= 0) & (error // length == layer)).nonzero()[:, 0].tolist():
            position = int(error[row]) % length
            out[row, position] = self.errors[layer, position]
        return out if out.any() else None

    def target_gradient(self, targets: Tensor, layer: int) -> Tensor | None:  # int64 [m] -> [m, T, D]
        """Gradient of some targets at the input of MLP `layer`, before its norm; None if none of them reads it."""
        rows = (targets < len(self.features)).nonzero()[:, 0]
        rows = rows[self.features.layer[targets[rows]] == layer]
        if not len(rows):
            return None
        out = torch.zeros(len(targets), self.linear.length, self.linear.width)
        ids = targets[rows]
        encoders, _ = self.transcoder.reads(layer)
        out[rows, self.features.position[ids]] = encoders[self.features.index[ids]]
        return self.linear.layers[layer].norm_2.pull(out)

    def final_gradient(self, targets: Tensor) -> Tensor:  # int64 [m] -> [m, T, D]
        """Gradient of some targets at the final residual stream: that of the logits."""
        out = torch.zeros(len(targets), self.linear.length, self.linear.width)
        rows = (targets >= len(self.features)).nonzero()[:, 0]
        out[rows, -1] = self.logits.direction[targets[rows] - len(self.features)]
        return self.linear.final_norm.pull(out)


@torch.no_grad()
def build_graph(linear: LinearisedPass, transcoder: Transcoder, logits: TargetLogits) -> Graph:
    """Compute all links, by one backward pass for each target, many targets at a time."""
    features, preactivation = _active_features(linear, transcoder)
    if not len(features):
        raise EdgewiseError(
            "no feature of the transcoder is active on this prompt: was it trained on text like it?"
        )
    errors = linear.mlp_outputs - transcoder.decode(transcoder.encode(linear.mlp_inputs))
    bias = torch.cat(
        [
            _feature_bias(linear, transcoder, features),
            logits.direction @ linear.final_norm.shift + logits.bias,
        ]
    )
    n_sources = linear.length + len(features) + errors.shape[0] * linear.length
    graph = Graph(
        linear,
        transcoder,
        features,
        errors,
        logits,
        torch.zeros(len(bias), n_sources),
        bias,
        torch.cat([preactivation, logits.value]),
    )
    batch = max(1, BATCH_BYTES // (4 * linear.length * linear.width * (len(linear.layers) + 4)))
    for targets in torch.arange(graph.n_targets).split(batch):
        _fill_links(graph, targets)
    if not graph.closure < MAX_CLOSURE:
        raise EdgewiseError(
            f"the contributions do not add up to the model's values ({graph.closure:.1%} off): its logits are no linear "
            "readout of its residual stream, and it cannot be traced"
        )
    return graph


def _active_features(
    linear: LinearisedPass, transcoder: Transcoder
) -> tuple[ActiveFeatures, Tensor]:  # -> [n]
    """The active features, and the preactivation of each."""
    activation = transcoder.encode(linear.mlp_inputs)  # [L, T, F]
    layer, position, index = activation.nonzero(as_tuple=True)
    values = activation[layer, position, index]
    preactivation = transcoder.preactivations(linear.mlp_inputs)[layer, position, index]
    return ActiveFeatures(layer, index, position, values), preactivation


def _feature_bias(linear: LinearisedPass, transcoder: Transcoder, features: ActiveFeatures) -> Tensor:  # [n]
    """Preactivation of each feature for an MLP input of nothing but the norm's shift."""
    bias = torch.empty(len(features))
    for number, layer in enumerate(linear.layers):
        of_layer = features.of_layer(number)
        encoders, encoder_bias = transcoder.reads(number)
        index = features.index[of_layer]
        bias[of_layer] = encoders[index] @ layer.norm_2.shift + encoder_bias[index]
    return bias


def _fill_links(graph: Graph, targets: Tensor) -> None:
    """Compute the links into some targets, and add attention's and the decoder's constants to their biases."""
    linear, features, transcoder = graph.linear, graph.features, graph.transcoder
    length, count = linear.length, len(features)
    mlp_gradients: dict[int, Tensor] = {}

    def visit(layer: int, at_mlp: Tensor, at_attention: Tensor, at_heads: Tensor) -> None:
        mlp_gradients[layer] = at_mlp
        graph.bias[targets] += torch.einsum("mtd,d->m", at_mlp, transcoder.output_bias[layer])
        graph.bias[targets] += torch.einsum("mtd,td->m", at_attention, linear.layers[layer].constant)

    at_embedding = linear.pull(
        graph.final_gradient(targets), lambda layer, _: graph.target_gradient(targets, layer), visit
    )
    graph.adjacency[targets, :length] = (at_embedding * linear.embedding).sum(-1)
    for layer, at_mlp in mlp_gradients.items():
        first = length + count + layer * length
        graph.adjacency[targets, first : first + length] = (at_mlp * graph.errors[layer]).sum(-1)
    for layer in range(len(linear.layers)):
        of_layer = features.of_layer(layer)
        index, position = features.index[of_layer], features.position[of_layer]
        total = torch.zeros(len(targets), len(index))
        by_position = [(p, (position == p).nonzero()[:, 0]) for p in position.unique().tolist()]
        for later in transcoder.outputs_of(layer):
            writes = transcoder.writes_to(later, layer, index)
            for p, at in by_position:  # one product for each position: nothing is gathered for pairs
                total[:, at] += mlp_gradients[later][:, p] @ writes[at].T
        sources = slice(length + of_layer.start, length + of_layer.stop)
        graph.adjacency[targets, sources] = total * features.activation[of_layer]
