"""FLOPs of each stage: the matrix products that the code computes (an addition and a multiplication are two).

N parameters, P of them in linear maps inside the L layers; width D, H heads of width d (H_kv of keys and values), vocabulary
V, T tokens per sequence. K is the number of keys that a query is multiplied with: causal, in blocks of 64 queries,
(T + 64) / 2 in a twin; (T + 1) / 2 in the dense model, but all T where documents are packed into sequences, because torch's
kernel multiplies masked products in full. W is the candidate vocabulary whose logits are computed, at most V.

    forward pass of a token     layers 2 P + 4 L H d K, logits 2 W D
    backward pass               linear maps: as much again for the gradient of their inputs, and for that of their weights;
                                gated attention 10 L H d K: scores again, dO V^T, dV, dQ, dK
    sparsify                    6 (P + W D) + 14 L H d K; with distillation the dense model's 2 (P + W D) + 4 L H d K
      with LoRA of rank r       4 (P + W D) + 6 r (inputs and outputs of all maps) in place of 6 (P + W D)
      attention only            4 (P + W D) + 2 (attention's weights); with LoRA, only its maps have adapters
    patching all heads          2 directions x H heads x (layers from l on, l = 0..L-1) = H L (L + 1) layers of each prompt
    EAP-IG                      for each step a forward pass, a backward pass without weights' gradients, and 2 D for each
                                edge and token
    transcoder, F features      model 2 P + 4 L H d K; encoders 4 L F D (inputs need no gradient), decoders 3 F D L (L + 1)

Element-wise work is not counted, with one exception: without a fused kernel, which exists for CPUs only, the gate's row
passes go through memory some 75 times, and on a GPU that takes longer than the products (`ROW_BYTES`).
"""

from dataclasses import dataclass

from edgewise.kernels.blocks import pairs_in_blocks
from edgewise.planning.setup import Setup, candidate_vocabulary
from edgewise.planning.shape import Shape

ROW_BYTES = {False: (126, 294), True: (415, 615)}
"""By whether gates are sampled: bytes that the gate's forward and backward row passes read and write for each pair of a
query and a key. Counted, not estimated: a test counts again."""


@dataclass(frozen=True)
class Work:
    """Work of a stage, by kinds that devices do at different speeds."""

    products: float = 0.0
    """FLOPs of matrix products in the run's `dtype`."""
    exact: float = 0.0
    """FLOPs of matrix products that are always in float32: gated attention, transcoders."""
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
    return pairs_in_blocks(T, T) / T


def in_checkpoint_dtype(shape: Shape, flops: float) -> Work:
    """Work outside of post-training, where a model computes in the dtype of its checkpoint."""
    return Work(products=flops) if shape.bytes_each < 4 else Work(exact=flops)


def layers_forward(shape: Shape, K: float) -> float:
    """FLOPs of one token through all layers, without logits."""
    return 2 * shape.linear + 4 * shape.layers * shape.attention_width * K


def sparsify(shape: Shape, setup: Setup) -> Work:
    """Work of post-training per token."""
    T = setup.context
    K, dense_K = keys_in_blocks(T), T if setup.packed else (T + 1) / 2
    unembedding = candidate_vocabulary(shape, setup) * shape.width
    maps = shape.linear + unembedding
    pairs = shape.layers * shape.heads * K
    forward_bytes, backward_bytes = ROW_BYTES[setup.recipe.gate.sampled]
    adapters = (setup.lora or 0) * (shape.attention_sides if setup.attention_only else shape.sides)
    trained = 0 if setup.lora is not None else shape.attention if setup.attention_only else maps
    work = Work(
        products=4 * maps + 2 * trained + 6 * adapters,
        exact=14 * shape.head_width * pairs,
        moved=(forward_bytes + backward_bytes) * pairs,
    )
    if setup.recipe.distillation or setup.recipe.paired_baseline:
        work += Work(products=layers_forward(shape, dense_K) + 2 * unembedding)
    if setup.checkpointing:  # layers are computed again for the backward pass
        again = 2 * (shape.linear + adapters)
        work += Work(products=again, exact=4 * shape.head_width * pairs, moved=forward_bytes * pairs)
    return work


def patch_heads(shape: Shape, n: int, t: int) -> Work:
    """Work of patching every head in both directions, on n pairs of t tokens that differ from the first token on."""
    layer = layers_forward(shape, (t + 1) / 2) / shape.layers
    runs = 2 * shape.heads * shape.layers
    last_mlp = 2 * shape.mlp / shape.layers  # at the last token only, in each run
    recorded = 2 * n * (t * layers_forward(shape, (t + 1) / 2) + 2 * shape.unembedding)
    # replays of one pair from the first layer and from the last, compared with its run
    checked = (shape.layers + 1) * t * layer - 2 * (t - 1) * last_mlp + 4 * shape.unembedding
    patched = n * (runs * (shape.layers + 1) / 2 * t * layer - runs * (t - 1) * last_mlp)
    return in_checkpoint_dtype(shape, recorded + checked + patched)


def attribute_edges(shape: Shape, n: int, t: int, steps: int = 5) -> Work:
    """Work of EAP-IG over all edges, on n pairs of t tokens."""
    K = (t + 1) / 2
    forward = layers_forward(shape, K)
    head_writes = 2 * shape.layers * shape.width * shape.attention_width
    head_reads = 2 * shape.layers * shape.width * (shape.attention_width + 2 * shape.kv_width)
    backward = 2 * shape.linear + 10 * shape.layers * shape.attention_width * K
    step = forward + backward + head_reads + 2 * shape.width * shape.edges
    return in_checkpoint_dtype(shape, n * t * (2 * (forward + head_writes) + steps * step))


def transcoder_weights(shape: Shape, features: int) -> int:
    """Weights of a cross-layer transcoder with so many features per layer."""
    L, F, D = shape.layers, features, shape.width
    return F * D * (L + L * (L + 1) // 2) + 2 * L * F + L * D


def train_transcoder(shape: Shape, features: int, T: int, packed: bool) -> Work:
    """Work of training a cross-layer transcoder per token."""
    L, F, D = shape.layers, features, shape.width
    model = layers_forward(shape, T if packed else (T + 1) / 2)
    return in_checkpoint_dtype(shape, model) + Work(exact=4 * L * F * D + 3 * F * D * L * (L + 1))
