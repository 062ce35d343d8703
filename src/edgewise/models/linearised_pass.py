"""The linearised forward pass of one prompt: attention patterns and norm denominators are frozen.

With the residual stream r (one vector of width D at each of T positions), in layer l

    r  <-  r + P1 sum_h A^h (N1 r) W_V^h W_O^h + c_l      A^h = M * p: the attention weights, [query, key]
    r  <-  r + P2 y_l                                     y_l: the MLP's output
    preactivation of feature f of layer l at position p:  enc_f . N2 r_p + b_f
    logit of token v minus the others' mean, by q_u:      (U_v - sum_u q_u U_u) . N r_last + b_v - sum_u q_u b_u

N is a norm with its denominator frozen: r -> gain * (r - mean r) / sigma_p (no mean for an RMS norm). So is P, in
models with norms after their sublayers, times the residual multiplier of models that have one; else it is 1. A norm's
shift (beta), the biases of V and O, the null value and all else that does not depend on r are constants. MLPs are not
differentiated through: their outputs are sources. So every target is an exactly linear function of its sources (MLP
outputs, embeddings) plus a constant. `push` applies that function to sources (the pushforward, a Jacobian-vector
product); `pull` carries gradients of targets back (the pullback, a vector-Jacobian product). One is the other's
transpose.

`strength` scales all heads at once; a link is a polynomial in it, whose terms are the paths through 0, 1, 2, ... heads
(`head_shares.py` uses this).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearisedNorm:
    """N, a norm with its denominator frozen, and its shift."""

    scale: Tensor
    """[T, D]: gain / sigma."""
    centred: bool
    """Whether the mean is subtracted first: a layer norm, not an RMS norm."""
    shift: Tensor
    """[D]: beta."""

    def push(self, r: Tensor) -> Tensor:  # [..., T, D]
        if self.centred:
            r = r - r.mean(-1, keepdim=True)
        return r * self.scale

    def pull(self, g: Tensor) -> Tensor:  # [..., T, D]
        g = g * self.scale
        return g - g.mean(-1, keepdim=True) if self.centred else g


@dataclass(frozen=True)
class LinearisedLayer:
    """One layer's attention with its pattern frozen, and the layer's two norms.

    Products are einsums, which compute one large product; `@` would first copy the layer's weights for each of the n inputs.
    """

    norm_1: LinearisedNorm
    norm_2: LinearisedNorm
    weights: Tensor
    """A, [heads, T, T]."""
    values: Tensor
    """W_V, [heads, D, d]."""
    outputs: Tensor
    """W_O, [heads, d, D]."""
    constant: Tensor
    """c, [T, D]: the attention output for a residual stream of zeros."""
    null_value: Tensor
    """Value vector that takes the closed attention mass, zero without one, [heads, d]."""
    post_attention: LinearisedNorm | None = None
    """P1, but for the multiplier, which `outputs` and `constant` hold."""
    post_mlp: LinearisedNorm | None = None
    multiplier: float = 1.0

    def head_values(self, r: Tensor) -> Tensor:  # [n, T, D] -> [n, heads, T, d]
        """Value vectors of each head at each key."""
        return torch.einsum("nte,hed->nhtd", self.norm_1.push(r), self.values)

    def push(self, head_values: Tensor) -> Tensor:  # [n, heads, T, d] -> [n, T, D]
        """What attention writes, without its constant, from the value vectors."""
        carried = torch.einsum("hqk,nhkd->nhqd", self.weights, head_values)
        attention = torch.einsum("nhqd,hde->nqe", carried, self.outputs)
        return attention if self.post_attention is None else self.post_attention.push(attention)

    def head_writes(self, carried: Tensor) -> Tensor:  # [heads, T, d] -> [heads, T, D]
        """What each head writes, from its output."""
        writes = carried @ self.outputs
        return writes if self.post_attention is None else self.post_attention.push(writes)

    def push_mlp(self, y: Tensor) -> Tensor:  # [n, T, D] -> [n, T, D]
        """What the MLP writes, from its output."""
        write = y if self.post_mlp is None else self.post_mlp.push(y)
        return write if self.multiplier == 1 else self.multiplier * write

    def pull_mlp(self, g: Tensor) -> Tensor:  # [n, T, D] -> [n, T, D]
        """Gradient at the MLP's output, from that at what it writes."""
        g = g if self.multiplier == 1 else self.multiplier * g
        return g if self.post_mlp is None else self.post_mlp.pull(g)

    def head_gradients(self, g: Tensor) -> Tensor:  # [n, T, D] -> [n, heads, T, d]
        """Gradient at each head's output, for each query."""
        return self.at_heads(g if self.post_attention is None else self.post_attention.pull(g))

    def at_heads(self, g: Tensor) -> Tensor:  # [n, T, D] -> [n, heads, T, d]
        """The same, from the gradient at the input of the norm after attention, if there is one."""
        return torch.einsum("nte,hde->nhtd", g, self.outputs)

    def pull(self, head_gradients: Tensor) -> Tensor:  # [n, heads, T, d] -> [n, T, D]
        """Gradient at the attention's input, from the gradients at its heads' outputs."""
        value_gradients = torch.einsum("hqk,nhqd->nhkd", self.weights, head_gradients)
        return self.norm_1.pull(torch.einsum("nhkd,hed->nke", value_gradients, self.values))


@dataclass(frozen=True)
class LinearisedPass:
    """The linear function of one prompt's forward pass, and the activations that define it."""

    ids: Tensor
    """[T]"""
    layers: Sequence[LinearisedLayer]
    final_norm: LinearisedNorm
    parallel: bool
    """Whether an MLP reads the same stream as the attention beside it."""
    embedding: Tensor
    """Input of the first layer, [T, D]."""
    residuals: Sequence[Tensor]
    """Input of each layer, [T, D]."""
    mlp_inputs: Tensor
    """After their norm, [L, T, D]."""
    mlp_outputs: Tensor
    """[L, T, D]"""
    queries: Sequence[Tensor]
    """Of each layer, after rotary embedding, [heads, T, d]."""
    keys: Sequence[Tensor]
    """[kv_heads, T, d]"""
    head_outputs: Sequence[Tensor]
    """[heads, T, d]"""
    scores: Sequence[Tensor]
    """s = q . k * scale, of each layer, [heads, T, T]."""
    logits: Tensor
    """Of the last position, [vocabulary]."""
    logit_scale: float
    """The logits divided by the unembedding's output."""

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return self.embedding.shape[-1]

    @property
    def n_heads(self) -> int:
        """Heads of a layer."""
        return self.layers[0].weights.shape[0]

    def push(
        self,
        embeddings: Tensor,
        mlp_write: Callable[[int], Tensor | None],
        visit: Callable[[int, Tensor, Tensor], None],
        strength: float = 1.0,
    ) -> Tensor:  # [n, T, D] -> [n, T, D]
        """Apply the linear function to n sources, without constants; gives the input of the final norm.

        Args:
            embeddings: What each source adds to the embedding.
            mlp_write: `mlp_write(l)` is what each source adds to the output of MLP l, [n, T, D].
            visit: `visit(l, r, v)` is called with each layer's input and its value vectors, [n, heads, T, d].
            strength: Scales the outputs of all heads.
        """
        r = embeddings
        for number, layer in enumerate(self.layers):
            head_values = _skip_zeros(layer.head_values, r)
            visit(number, r, head_values)
            r = r + strength * _skip_zeros(layer.push, head_values)
            write = mlp_write(number)
            r = r if write is None else r + layer.push_mlp(write)
        return r

    def reconstruct(self) -> Tensor:  # -> [T, D]
        """The input of the final norm, from embedding, MLP outputs and constants."""
        r = self.embedding[None]
        for layer, y in zip(self.layers, self.mlp_outputs, strict=True):
            r = r + layer.push(layer.head_values(r)) + layer.constant + layer.push_mlp(y[None])
        return r[0]

    def pull(
        self,
        final_gradient: Tensor,
        mlp_gradient: Callable[[int, Tensor], Tensor | None],
        visit: Callable[[int, Tensor, Tensor, Tensor], None],
        strength: float = 1.0,
    ) -> Tensor:  # [n, T, D] -> [n, T, D]
        """Carry the gradients of n targets back; gives those at the embedding.

        Args:
            final_gradient: At the final residual stream.
            mlp_gradient: `mlp_gradient(l, g)` is what is added at the input of MLP l (before its norm), given the gradient
                g at the MLP's output.
            visit: `visit(l, m, a, h)` is called with the gradients at the outputs of MLP l, of attention l, [n, T, D], and
                of its heads, [n, heads, T, d].
            strength: Scales the outputs of all heads.
        """
        g = final_gradient
        for number in reversed(range(len(self.layers))):
            layer, after, at_attention = self.layers[number], g, g
            at_mlp = layer.pull_mlp(g)
            at_mlp_input = mlp_gradient(number, at_mlp)
            if at_mlp_input is not None:
                g = g + at_mlp_input
                at_attention = after if self.parallel else g
            at_heads = _skip_zeros(layer.head_gradients, at_attention)
            visit(number, at_mlp, at_attention, at_heads)
            g = g + strength * _skip_zeros(layer.pull, at_heads)
        return g


def _skip_zeros(linear: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a linear function to the inputs that are not all zero: sources are zero before the layer that writes them, and
    gradients after the layer that reads."""
    nonzero = x.flatten(1).any(1)
    if nonzero.all():
        return linear(x)
    y = linear(x[nonzero])
    return y.new_zeros(len(x), *y.shape[1:]).index_copy_(0, nonzero.nonzero()[:, 0], y)
