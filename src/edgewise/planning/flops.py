"""How much arithmetic each stage does: what the code really multiplies, in FLOPs (an addition and a multiplication are two).

N parameters, P of them in linear maps inside the L layers; width D, H heads of width d (H_kv of keys and values), V words in
the vocabulary, T tokens to a row. K is the number of keys that a query is multiplied with: causal, in blocks of 64 queries,
(T + 64) / 2 in a twin; (T + 1) / 2 in the dense model, but all T where documents are packed into rows, whose mask torch's
kernel multiplies in full. W is the number of words whose logits are computed (`words_at_once`), V at most.

    forward pass of a token     layers 2 P + 4 L H d K, logits 2 W D
    backward pass               linear maps: as much again for the gradient at their inputs, and for that of their weights;
                                gated attention 10 L H d K: scores again, dO V^T, dV, dQ, dK
    sparsify                    6 (P + W D) + 14 L H d K; where the recipe asks the dense model, its 2 (P + W D) + 4 L H d K
    sparsify --lora r           4 (P + W D) + 6 r (inputs and outputs of all maps) in place of 6 (P + W D)
    sparsify --attention-only   4 (P + W D) + 2 (attention's weights); with --lora, only its maps have adapters
    patching all heads          2 directions x H heads x (layers from l on, l = 0..L-1) = H L (L + 1) layers of each prompt
    EAP-IG                      for each step a forward pass, a backward pass without weights' gradients, and 2 D for each
                                edge and token; its curve, 2 D for each edge, token and point
    transcoder, F features      model 2 P + 4 L H d K; encoders 4 L F D (inputs need no gradient), decoders 3 F D L (L + 1)
    trace of t tokens           each target walks back: L (4 t D H d + 2 t^2 H d); heads' shares do so at many strengths

Element-wise work is not counted, with one exception: without a fused kernel, which there is for a CPU only, the gate's row
passes go through memory some 75 times, and on a GPU that takes longer than the products (`ROW_BYTES`).
"""

from dataclasses import dataclass

from edgewise.circuits.curve import grid
from edgewise.kernels import equations as gate
from edgewise.planning.shape import Shape
from edgewise.tracing.head_shares import gauss
from edgewise.tracing.memory import KEPT, LINKS
from edgewise.training.sparsify.config import Recipe
from edgewise.training.sparsify.sampled_softmax import LIKELY, OTHERS, is_large

ROW_BYTES = {False: (126, 294), True: (415, 615)}
"""By whether gates are sampled: bytes that `gate.forward_rows` and `gate.backward_rows` read and write for each pair of a
query and a key. Counted, not estimated: a test counts again."""

# What a trace finds depends on the prompt; these are `pocket`'s on eight tokens.
ACTIVE = 12
"""Active features of a layer and token."""
_CONTEXT_TOKENS, _TAKEN_AWAY, _PATHS = (
    32_768,
    120,
    20,
)  # `tracing.explain`: text to search, runs without something, links


@dataclass(frozen=True)
class Work:
    """What has to be done. Kinds are kept apart because devices do them at different speeds."""

    products: float = 0.0
    """FLOPs of matrix products in the precision that was asked for."""
    exact: float = 0.0
    """FLOPs of matrix products that are in float32 always: gated attention, transcoders, traces."""
    moved: float = 0.0
    """Bytes of the gate's row passes."""

    @property
    def flops(self) -> float:
        return self.products + self.exact

    def __add__(self, other: "Work") -> "Work":
        return Work(self.products + other.products, self.exact + other.exact, self.moved + other.moved)

    def __mul__(self, times: float) -> "Work":
        return Work(self.products * times, self.exact * times, self.moved * times)


def keys_in_blocks(T: int) -> float:
    """K of a twin: the mean over queries of the keys up to the end of their block."""
    size = min(gate._QUERIES, T)
    whole, rest = divmod(T, size)
    return (size * size * whole * (whole + 1) / 2 + rest * T) / T


def in_own_precision(shape: Shape, flops: float) -> Work:
    """Outside of post-training a model computes in the precision of its checkpoint."""
    return Work(products=flops) if shape.bytes_each < 4 else Work(exact=flops)


def layers_forward(shape: Shape, K: float) -> float:
    """Of one token through all layers, without logits."""
    return 2 * shape.linear + 4 * shape.layers * shape.attention_width * K


def words_at_once(shape: Shape, recipe: Recipe, tokens: int, sharded: bool) -> int:
    """W for so many tokens at once: all words, or where `posttraining.gradients` takes only likely ones, those of the text
    and a sample of the others, at most as many as that can be."""
    if not recipe.paired or sharded or not is_large(shape.vocabulary):
        return shape.vocabulary
    return min(shape.vocabulary, LIKELY + OTHERS + tokens)


def sparsify(
    shape: Shape,
    T: int,
    recipe: Recipe,
    lora: int | None = None,
    packed: bool = True,
    checkpointing: bool = False,
    words: int | None = None,
    attention_only: bool = False,
) -> Work:
    """Of one token. `packed`: documents share rows. `checkpointing`: layers are run again for the backward pass. `words`: W,
    V if not given."""
    K, dense_K = keys_in_blocks(T), T if packed else (T + 1) / 2
    unembedding = (shape.vocabulary if words is None else words) * shape.width
    maps = shape.linear + unembedding
    pairs = shape.layers * shape.heads * K
    forward_bytes, backward_bytes = ROW_BYTES[recipe.sampled]
    adapters = 0 if lora is None else lora * (shape.attention_sides if attention_only else shape.sides)
    learned = 0 if lora is not None else shape.attention if attention_only else maps
    work = Work(
        products=4 * maps + 2 * learned + 6 * adapters,
        exact=14 * shape.head_width * pairs,
        moved=(forward_bytes + backward_bytes) * pairs,
    )
    if recipe.distilled or recipe.paired:
        work += Work(products=layers_forward(shape, dense_K) + 2 * unembedding)
    if checkpointing:
        again = 2 * (shape.linear + adapters)
        work += Work(products=again, exact=4 * shape.head_width * pairs, moved=forward_bytes * pairs)
    return work


# ------------------------------------------------------------------------------------------------------------ circuits


def patch_heads(shape: Shape, n: int, t: int) -> Work:
    """Every head in both directions, in n pairs of t tokens that differ from the first token on."""
    layer = layers_forward(shape, (t + 1) / 2) / shape.layers
    runs = 2 * shape.heads * shape.layers
    last_mlp = 2 * shape.mlp / shape.layers  # at the last token only, in each run
    recorded = 2 * n * (t * layers_forward(shape, (t + 1) / 2) + 2 * shape.unembedding)
    patched = n * (runs * (shape.layers + 1) / 2 * t * layer - runs * (t - 1) * last_mlp)
    return in_own_precision(shape, recorded + patched)


def attribute_edges(shape: Shape, n: int, t: int, steps: int = 5) -> Work:
    """EAP-IG over all edges."""
    K = (t + 1) / 2
    step = layers_forward(shape, K) + 2 * shape.linear + 10 * shape.layers * shape.attention_width * K
    step += _split_inputs(shape) + 2 * shape.width * shape.edges
    return in_own_precision(shape, n * t * (2 * _stream(shape, K) + steps * step))


def edge_curve(shape: Shape, n: int, t: int) -> Work:
    """The curve of edges, pooled and of each prompt: a run for each point."""
    K = (t + 1) / 2
    run = layers_forward(shape, K) + _split_inputs(shape) + _head_writes(shape)
    return in_own_precision(shape, n * t * 2 * points(shape.edges) * (run + 2 * shape.width * shape.edges))


def head_curve(shape: Shape, n: int, t: int) -> Work:
    count = 2 * points(shape.layers * shape.heads)
    return in_own_precision(shape, n * t * count * layers_forward(shape, (t + 1) / 2))


def points(total: int) -> int:
    """Runs of a curve, at most: the grid, then four in an interval that is a quarter of all at first and then shrinks to a
    fifth each time."""
    rounds, gap = 0, total / 4
    while gap > 1:
        rounds, gap = rounds + 1, gap / 5
    return len(grid(total)) + 4 * rounds


def _split_inputs(shape: Shape) -> float:
    """Queries, keys and values between each head's own width and the stream's."""
    return 2 * shape.layers * shape.width * (shape.attention_width + 2 * shape.kv_width)


def _head_writes(shape: Shape) -> float:
    return 2 * shape.layers * shape.width * shape.attention_width


def _stream(shape: Shape, K: float) -> float:
    return layers_forward(shape, K) + _head_writes(shape)


# ---------------------------------------------------------------------------------------------- transcoders and traces


def transcoder_weights(shape: Shape, features: int) -> int:
    L, F, D = shape.layers, features, shape.width
    return F * D * (L + L * (L + 1) // 2) + 2 * L * F + L * D


def train_transcoder(shape: Shape, features: int, T: int, packed: bool) -> Work:
    """Of one token."""
    L, F, D = shape.layers, features, shape.width
    model = layers_forward(shape, T if packed else (T + 1) / 2)
    return in_own_precision(shape, model) + Work(exact=4 * L * F * D + 3 * F * D * L * (L + 1))


@dataclass(frozen=True)
class TraceSize:
    """How large the graph of a prompt is: the transcoder decides, so this is an assumption."""

    active: int
    kept: int
    links: int
    strengths: int
    """At which heads' shares are integrated."""


def trace_size(shape: Shape, t: int) -> TraceSize:
    active = ACTIVE * shape.layers * t
    kept = round(KEPT * active)
    return TraceSize(active, kept, LINKS * kept, len(gauss(shape.layers)))


def trace(shape: Shape, t: int) -> Work:
    L, D, Hd, size = shape.layers, shape.width, shape.attention_width, trace_size(shape, t)
    runs = (
        1 + shape.head_width + _TAKEN_AWAY
    )  # the prompt; a unit vector of a query each; without something each
    model = runs * t * (layers_forward(shape, t) + 2 * shape.unembedding)
    model += _CONTEXT_TOKENS * layers_forward(shape, 0)
    walk = L * (4 * t * D * Hd + 2 * t * t * Hd)
    graph = size.active * (walk + size.active * (L + 1) * D)
    # half a walk each: nothing is carried before it is written or after it is read; links as in `bytes_of`
    shares = size.strengths * (size.kept * walk + L * size.links * 2 * t * t * Hd / 9)
    pairs_of_heads = _PATHS * L * (L - 1) / 2 * shape.heads * 2 * t * D * Hd
    return Work(exact=model + graph + shares + pairs_of_heads)
