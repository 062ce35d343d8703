"""Peak memory of each stage on one device, in bytes.

Notation as in `flops.py`; I is the width inside an MLP, B the sequences computed at once, G the number of devices.

    weights          4 N: the twin is trained in float32; with bf16 also autocast's copies, 2 (P + V D)
    gradients        4 (trained weights)
    optimizer        8 (trained weights): AdamW's two moments; 4 more for weight averaging
    dense model      N in the checkpoint's dtype; with bf16 and a float32 checkpoint also autocast's 2 (P + V D)
    activations      4 B T L (6 D + 3 H d + 2 H_kv d + 4 I or 5 I), kept for the backward pass; nothing of size T x T
    logits           4 B T W: three such tensors at once (both models' and the gradient, or a softmax and its gradient);
                     with sampled softmax also the W candidates' part of both unembeddings
    masks            11 B T^2 where documents are packed into sequences

FSDP divides both models by G, from the CPU's memory on, layer by layer. Then a device holds its shards, and gathered:
embedding and unembedding, two layers (the current one and the next), of each model, and gradients of one. It does not divide
autocast's copies, which are kept for the backward pass.
"""

from dataclasses import dataclass, fields

from edgewise.circuits.memory import edge_elements, edge_score_bytes
from edgewise.measure.memory import activation_elements
from edgewise.planning.flops import transcoder_weights
from edgewise.planning.setup import Setup, candidate_vocabulary
from edgewise.planning.shape import Shape
from edgewise.training.transcoder.shuffle import BUFFER_BYTES

LOGITS = 3
"""Tensors of the logits' size at the peak. Measured."""
MASK_BYTES = 11
"""For each pair of positions in a sequence, while the dense model runs. Measured."""
BF16_ACTIVATIONS = 0.82
"""Of float32's: the residual stream, norms and gated attention stay in float32. Measured on a Llama; 0.61 on a GPT-2."""


@dataclass(frozen=True)
class Memory:
    """Bytes on each device."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    dense: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    masks: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))


def n_trained(shape: Shape, setup: Setup) -> int:
    """Trained parameters: the gates' thresholds, and all weights, or attention's (without biases), or adapters."""
    if setup.attention_only:
        weights, sides = shape.attention, shape.attention_sides
    else:
        weights, sides = shape.parameters, shape.sides
    return shape.layers * shape.heads + (weights if setup.lora is None else setup.lora * sides)


def floats_per_layer(shape: Shape) -> int:
    """Activation elements per token that a layer keeps for its backward pass. Exact for Llama, 7 % too many for GPT-2."""
    mlp = (4 if shape.gated_mlp else 5) * shape.inner
    return 6 * shape.width + 3 * shape.attention_width + 2 * shape.kv_width + mlp


def sparsify(shape: Shape, setup: Setup) -> Memory:
    """Peak memory of post-training on each device."""
    G = setup.n_gpus if setup.sharded else 1
    trained = n_trained(shape, setup)
    weights = 4 * (shape.parameters + (trained if setup.lora is not None else shape.layers * shape.heads)) / G
    gradients, dense = 4 * trained / G, shape.bytes_each * shape.parameters / G
    if setup.sharded:  # what FSDP gathers
        ends, layer = shape.unembedding * (1 if shape.tied else 2), shape.linear / shape.layers
        gathered = (ends + min(2, shape.layers) * layer) * (1 - 1 / G)
        weights += 4 * gathered
        dense += shape.bytes_each * gathered
        gradients += 4 * (ends + layer) * (1 - 1 / G)
    autocast = 2 * (shape.linear + shape.unembedding) if setup.bf16 else 0
    kept = floats_per_layer(shape) * (1 if setup.checkpointing else shape.layers)
    kept += shape.layers * shape.width if setup.checkpointing else 0
    tokens, W = setup.micro_batch * setup.context, candidate_vocabulary(shape, setup)
    averaged = setup.recipe.optimizer.averaged_fraction
    return Memory(
        weights=weights + autocast,
        gradients=gradients,
        optimizer=(12 if averaged else 8) * trained / G,
        dense=dense + (autocast if shape.bytes_each == 4 else 0),
        activations=4 * tokens * kept * (BF16_ACTIVATIONS if setup.bf16 else 1.0),
        logits=4 * W * (LOGITS * tokens + (2 * shape.width if shape.vocabulary > W else 0)),
        masks=MASK_BYTES * setup.micro_batch * setup.context**2 if setup.packed else 0.0,
    )


def circuits(shape: Shape, n: int, t: int, limit: int) -> Memory:
    """Peak memory of a circuit search on n pairs of t tokens, which attributing edges needs: the streams of as many prompts
    as fit into `limit` bytes, and the scores and ranks of all edges."""
    inputs, pairs = shape.heads + 2 * shape.kv_heads, shape.edge_sources * shape.edge_targets
    streams = 4 * edge_elements(t * shape.width, shape.edge_sources, inputs)
    prompt = streams + 16 * pairs + 4 * activation_elements(t, shape.width, shape.inner, shape.heads)
    at_once = min(max(limit, prompt), n * prompt)
    scores = edge_score_bytes(n, pairs, shape.edges)
    return Memory(dense=shape.bytes_each * shape.parameters, activations=at_once + scores)


def train_transcoder(shape: Shape, features: int, T: int, batch_size: int) -> Memory:
    """Peak memory of transcoder training: the model without gradients, Adam, a step's activations and the shuffle buffer,
    which is there twice while it is filled, when there are no gradients yet."""
    n_weights, tokens = transcoder_weights(shape, features), batch_size * T
    step = tokens * shape.layers * (6 * features + 6 * shape.width)
    buffer = max(2 * tokens * shape.layers * shape.width * 2, BUFFER_BYTES)  # in bfloat16 where it is more
    return Memory(
        weights=4 * n_weights,
        gradients=4 * n_weights,
        optimizer=8 * n_weights,
        dense=shape.bytes_each * shape.parameters,
        activations=4 * step + buffer + max(0, buffer - 4 * n_weights),
    )
