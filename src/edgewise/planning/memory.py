"""How much memory each stage takes at its peak, on one device.

Notation as in `flops.py`; I is the width inside an MLP, B the rows computed at once, G the number of devices. In bytes:

    weights          4 N: the twin is trained in float32; with bf16 also the copies that autocast makes, 2 (P + V D)
    gradients        4 (trained weights)
    optimizer        8 (trained weights): AdamW's two moments; 4 more where the twin is an average, but with FSDP
    dense model      N in the checkpoint's precision; with bf16 and a float32 checkpoint also autocast's 2 (P + V D)
    activations      4 B T L (6 D + 3 H d + 2 H_kv d + 4 I or 5 I), kept for the backward pass; nothing of size T x T
    logits           4 B T W: three such tensors at once (both models' and the gradient, or a softmax and its gradient);
                     and the W words' rows of both unembeddings
    masks            11 B T^2 where documents are packed into rows

FSDP divides what is trained by G. Then a device holds its part, and whole: embedding and unembedding, two layers (the one at
work and the next), and gradients of one. Three things FSDP does not divide here: the dense model, which is not handed to
accelerate; autocast's copies, which are kept for the backward pass or cached until the forward pass is over; and at the
start, before accelerate divides it, the whole twin.
"""

from dataclasses import dataclass, field, fields

from edgewise.circuits.memory import bytes_of_scores, numbers_of_edges
from edgewise.measure.evaluation import numbers_of_row
from edgewise.planning.flops import trace_size, transcoder_weights, words_at_once
from edgewise.planning.shape import Shape
from edgewise.tracing.head_shares import bytes_of
from edgewise.tracing.memory import of_stages
from edgewise.training.sparsify.config import PRETRAINED, Recipe
from edgewise.training.transcoder.mixing import MIXED_BYTES

LOGITS = 3
"""Tensors of the logits' size at the peak. Measured."""
MASK_BYTES = 11
"""For each pair of positions in a row, while the dense model runs. Measured."""
CHUNK = 1024
"""Tokens whose logits would be there at once if they came in chunks."""
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


@dataclass(frozen=True)
class Setup:
    """How a run of post-training is laid out."""

    T: int
    B: int
    """Rows at once on a device."""
    lora: int | None = None
    attention_only: bool = field(default=False, kw_only=True)
    recipe: Recipe = PRETRAINED["edgewise"]
    packed: bool = True
    bf16: bool = False
    G: int = 1
    sharded: bool = False
    """FSDP."""
    checkpointing: bool = False
    """Of activations: only what enters each layer is kept."""
    ideal: bool = False
    """Not what the code does: FSDP divides the dense model, autocast's copies and the twin at the start, too; logits come in
    chunks; documents are told apart without masks."""


def trained(shape: Shape, lora: int | None, attention_only: bool = False) -> int:
    """Weights that are trained: the gates' thresholds, and all, or attention's (but for its biases), or adapters."""
    weights, sides = (
        (shape.attention, shape.attention_sides) if attention_only else (shape.parameters, shape.sides)
    )
    return shape.layers * shape.heads + (weights if lora is None else lora * sides)


def floats_per_layer(shape: Shape) -> int:
    """What a layer keeps of each token for its backward pass. Exact for Llama, 7 % too much for GPT-2."""
    mlp = (4 if shape.gated_mlp else 5) * shape.inner
    return 6 * shape.width + 3 * shape.attention_width + 2 * shape.kv_width + mlp


def sparsify(shape: Shape, setup: Setup) -> Memory:
    G = setup.G if setup.sharded else 1
    learned = trained(shape, setup.lora, setup.attention_only)
    maps = shape.linear + shape.unembedding
    whole = shape.parameters + (learned if setup.lora is not None else shape.layers * shape.heads)
    weights, gradients = 4 * whole / G, 4 * learned / G
    if setup.sharded:
        ends, layer = shape.unembedding * (1 if shape.tied else 2), shape.linear / shape.layers
        weights += 4 * (ends + min(2, shape.layers) * layer) * (1 - 1 / G)
        gradients += 4 * (ends + layer) * (1 - 1 / G)
    elif setup.G > 1:
        gradients *= 2  # DDP's buckets
    dense = shape.bytes_each * shape.parameters / (G if setup.ideal else 1)
    if setup.bf16:
        copies = 2 * maps / (G if setup.ideal else 1)
        weights += copies
        dense += copies if shape.bytes_each == 4 else 0
    kept = floats_per_layer(shape) * (1 if setup.checkpointing else shape.layers)
    kept += shape.layers * shape.width if setup.checkpointing else 0
    tokens = setup.B * setup.T
    words = words_at_once(shape, setup.recipe, tokens, setup.sharded)
    logits = LOGITS * (min(tokens, CHUNK) if setup.ideal else tokens)
    return Memory(
        weights,
        gradients,
        (8 + (4 if setup.recipe.averaged and not setup.sharded else 0)) * learned / G,
        dense,
        4 * tokens * kept * (BF16_ACTIVATIONS if setup.bf16 else 1.0),
        4 * words * (logits + (2 * shape.width if words < shape.vocabulary else 0)),
        MASK_BYTES * setup.B * setup.T**2 if setup.packed and not setup.ideal else 0.0,
    )


def at_start(shape: Shape, setup: Setup) -> float:
    """Before accelerate divides it, the twin is whole on each device, beside the dense model."""
    return 0.0 if setup.ideal else (shape.bytes_each + 4) * shape.parameters


# ---------------------------------------------------------------------------------------------------- the other stages


def _row(shape: Shape, t: int) -> float:
    """A patched prompt in a layer."""
    return 4 * numbers_of_row(t, shape.width, shape.inner, shape.heads)


def circuits(shape: Shape, n: int, t: int, limit: int) -> Memory:
    """Patching heads: the two recorded runs, and as many patched ones as the limit allows."""
    recorded = 2 * n * t * shape.layers * (shape.width + shape.attention_width)
    at_once = min(max(limit, _row(shape, t)), shape.heads * n * _row(shape, t))
    return Memory(dense=shape.bytes_each * shape.parameters, activations=4 * recorded + at_once)


def edges(shape: Shape, n: int, t: int, limit: int) -> Memory:
    """Edges: what each source writes and each input of a layer reads, of as many prompts as the limit allows; the scores and
    ranks of all edges in all prompts."""
    inputs = shape.heads + 2 * shape.kv_heads
    grid = shape.edge_sources * shape.edge_targets
    passed = 4 * numbers_of_edges(t * shape.width, shape.edge_sources, inputs)
    prompt = passed + 16 * grid + _row(shape, t)
    at_once = min(max(limit, prompt), n * prompt)
    return Memory(
        dense=shape.bytes_each * shape.parameters,
        activations=at_once + bytes_of_scores(n, grid, shape.edges),
    )


def transcoder(shape: Shape, features: int, T: int, rows: int) -> Memory:
    """Training: the model without gradients; Adam; a step's tokens, and mixed ones, twice while they are put together and
    there are no gradients."""
    count, tokens = transcoder_weights(shape, features), rows * T
    step = tokens * shape.layers * (6 * features + 6 * shape.width)
    mixed = max(2 * tokens * shape.layers * shape.width * 2, MIXED_BYTES)  # in bfloat16 where it is more
    return Memory(
        weights=4 * count,
        gradients=4 * count,
        optimizer=8 * count,
        dense=shape.bytes_each * shape.parameters,
        activations=4 * step + mixed + max(0, mixed - 4 * count),
    )


def trace(shape: Shape, features: int, t: int) -> Memory:
    """One prompt: model and transcoder in float32; the matrix of edges some times over, or heads' shares of as many
    links as are allowed at once."""
    size, transcoded = trace_size(shape, t), transcoder_weights(shape, features)
    pairs = size.active * (t + size.active + shape.layers * t)
    carried = bytes_of(shape.layers, shape.heads, t, shape.attention_width, size.kept, size.links)
    return Memory(weights=4 * transcoded, dense=4 * shape.parameters, activations=of_stages(pairs, carried))
