"""One prompt's forward pass, made linear: attention patterns and the norms' denominators are kept as they were.

With the residual stream r (one vector of width D at each of T positions), in layer l

    r  <-  r + sum_h A^h (N1 r) W_V^h W_O^h + c_l         A^h = M * p: the weights that were used, [query, key]
    r  <-  r + y_l                                        y_l: what the MLP gave
    preactivation of feature f of layer l at position p:  enc_f . N2 r_p + b_f
    logit of token v at the last position:                (U_v - mean U) . N r_last + b_v

N is a norm with its denominator frozen: r -> gain * (r - mean r) / sigma_p (no mean for an RMS norm), and what it adds
(beta), the biases of V and O, the value of attending to nothing and all else that does not depend on r are in constants.
MLPs are not walked through: what they gave is a source. So every target is an exactly linear function of its sources (what
MLPs gave, what the embedding gave) plus a constant, and this file has the two ways to walk that function: `push` carries
sources forward, `pull` carries targets' gradients back. One is the other's transpose.

`strength` scales all heads at once; an edge is a polynomial in it, whose terms are the paths through 0, 1, 2, ... heads
(`shares.py` tells them apart by it).
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.models.architecture import Layer, parts_of
from edgewise.models.hooks import replace_input, replace_output

_CLOSE = 1e-3  # relative; what is not understood about an architecture shows up as far more


@dataclass(frozen=True)
class FrozenNorm:
    """N: linear, and what it adds."""

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
class FrozenLayer:
    """A layer's attention, and the two norms. By einsum a product is one large one; `@` would first copy the layer's weights
    for each of n."""

    norm_1: FrozenNorm
    norm_2: FrozenNorm
    weights: Tensor
    """A, [heads, T, T]."""
    values: Tensor
    """W_V, [heads, D, d]."""
    outputs: Tensor
    """W_O, [heads, d, D]."""
    constant: Tensor
    """c, [T, D]: what attention gives when it reads nothing."""
    null_value: Tensor
    """What each head gives when it attends to nothing, [heads, d]."""

    def head_values(self, r: Tensor) -> Tensor:  # [n, T, D] -> [n, heads, T, d]
        """What each head would carry from each key."""
        return torch.einsum("nte,hed->nhtd", self.norm_1.push(r), self.values)

    def push(self, at_heads: Tensor) -> Tensor:  # [n, heads, T, d] -> [n, T, D]
        """What attention adds, without its constant, from what each head would carry."""
        carried = torch.einsum("hqk,nhkd->nhqd", self.weights, at_heads)
        return torch.einsum("nhqd,hde->nqe", carried, self.outputs)

    def head_gradients(self, g: Tensor) -> Tensor:  # [n, T, D] -> [n, heads, T, d]
        """The gradient at each head's output, for each query."""
        return torch.einsum("nte,hde->nhtd", g, self.outputs)

    def pull(self, at_heads: Tensor) -> Tensor:  # [n, heads, T, d] -> [n, T, D]
        """The gradient at what attention reads, from that at its heads' outputs."""
        at_values = torch.einsum("hqk,nhqd->nhkd", self.weights, at_heads)
        return self.norm_1.pull(torch.einsum("nhkd,hed->nke", at_values, self.values))


@dataclass(frozen=True)
class Frozen:
    """A prompt's pass through a model, and its linear function."""

    ids: Tensor
    """[T]"""
    layers: Sequence[FrozenLayer]
    final_norm: FrozenNorm
    parallel: bool
    """Whether an MLP reads the same stream as the attention beside it."""
    embedding: Tensor
    """What enters the first layer, [T, D]."""
    streams: Sequence[Tensor]
    """What enters each layer, [T, D]."""
    mlp_inputs: Tensor
    """After their norm, [L, T, D]."""
    mlp_outputs: Tensor
    """[L, T, D]"""
    queries: Sequence[Tensor]
    """Of each layer, as they meet the keys, [heads, T, d]."""
    keys: Sequence[Tensor]
    """[kv_heads, T, d]"""
    head_outputs: Sequence[Tensor]
    """[heads, T, d]"""
    scores: Sequence[Tensor]
    """s = q . k * scale, of each layer, [heads, T, T]."""
    logits: Tensor
    """Of the last position, [vocabulary]."""

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return self.embedding.shape[-1]

    def push(
        self,
        start: Tensor,
        written: Callable[[int], Tensor | None],
        visit: Callable[[int, Tensor, Tensor], None],
        strength: float = 1.0,
    ) -> Tensor:  # [n, T, D] -> [n, T, D]
        """Carry sources forward: `start` enters the first layer, `written(l)` is added where MLP l writes; `visit(l, r, v)`
        sees what enters each layer and what its heads would carry of it. Gives what enters the final norm. Constants are
        left out."""
        r = start
        for number, layer in enumerate(self.layers):
            at_heads = _of_some(layer.head_values, r)
            visit(number, r, at_heads)
            r = r + strength * _of_some(layer.push, at_heads)
            more = written(number)
            r = r if more is None else r + more
        return r

    def pull(
        self,
        end: Tensor,
        read: Callable[[int, Tensor], Tensor | None],
        visit: Callable[[int, Tensor, Tensor, Tensor], None],
        strength: float = 1.0,
    ) -> Tensor:  # [n, T, D] -> [n, T, D]
        """Carry gradients back: `end` is that at the final residual stream, `read(l, g)`, which is told the gradient at what
        MLP l writes, is added where MLP l reads (before its norm); `visit(l, g, a, h)` sees the gradients at what MLP l,
        attention l and its heads write. Gives that at the embedding."""
        g = end
        for number in reversed(range(len(self.layers))):
            layer, more = self.layers[number], read(number, g)
            at_mlp = at_attention = g
            if more is not None:
                g = g + more
                at_attention = at_mlp if self.parallel else g
            at_heads = _of_some(layer.head_gradients, at_attention)
            visit(number, at_mlp, at_attention, at_heads)
            g = g + strength * _of_some(layer.pull, at_heads)
        return g


def _of_some(linear: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A linear function of each row; of rows of zeros it need not be computed. Sources are nothing before they are written,
    and targets after they are read."""
    some = x.flatten(1).any(1)
    if some.all():
        return linear(x)
    found = linear(x[some])
    return found.new_zeros(len(x), *found.shape[1:]).index_copy_(0, some.nonzero()[:, 0], found)


# ------------------------------------------------------------------------------------------------------------- recording


@torch.no_grad()
def freeze(model: PreTrainedModel, ids: Tensor) -> Frozen:  # [T]
    """Run a prompt and keep all that makes its pass linear."""
    parts, gates, name = parts_of(model), gates_of(model), type(model).__name__
    model.eval()
    seen: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
    streams: dict[int, Tensor] = {}
    with ExitStack() as stack:
        modules: list[tuple[tuple[str, int], nn.Module]] = [(("final", 0), parts.final_norm)]
        for number, layer in enumerate(parts.layers):
            modules += [(("norm_1", number), layer.norm_1), (("norm_2", number), layer.norm_2)]
            modules += [(("mlp", number), layer.mlp)]
            stack.enter_context(replace_input(layer.module, lambda x, i=number: streams.setdefault(i, x)))
        for key, module in modules:
            stack.enter_context(_watching(module, key, seen))
        taps = stack.enter_context(tap(model, read=["queries", "keys", "outputs", "scores", "weights"]))
        logits = model(input_ids=ids[None], use_cache=False).logits[0, -1]
    if any(key not in seen for key, _ in modules) or len(streams) != len(parts.layers):
        raise EdgewiseError(f"{name}: a layer's norm, attention or MLP did not come by; it cannot be traced")
    layers = []
    for number, layer in enumerate(parts.layers):
        norm_1 = _freeze_norm(layer.norm_1, *seen["norm_1", number], name)
        norm_2 = _freeze_norm(layer.norm_2, *seen["norm_2", number], name)
        layers.append(
            _freeze_layer(layer, norm_1, norm_2, taps.last["weights"][number][0], gates[number].null_value)
        )
    mlps = [seen["mlp", number] for number in range(len(layers))]
    parallel = all(torch.equal(seen["norm_1", i][0], seen["norm_2", i][0]) for i in range(len(layers)))
    frozen = Frozen(
        ids,
        layers,
        _freeze_norm(parts.final_norm, *seen["final", 0], name),
        parallel,
        streams[0][0],
        [streams[i][0] for i in range(len(layers))],
        torch.stack([x for x, _ in mlps]),
        torch.stack([y for _, y in mlps]),
        [taps.last["queries"][i][0] for i in range(len(layers))],
        [taps.last["keys"][i][0] for i in range(len(layers))],
        [taps.last["outputs"][i][0] for i in range(len(layers))],
        [taps.last["scores"][i][0] for i in range(len(layers))],
        logits,
    )
    _check_closes(frozen, seen["final", 0][0], name)
    return frozen


def _watching(module: nn.Module, key: tuple[str, int], into: dict) -> Any:
    stack = ExitStack()
    inputs: list[Tensor] = []

    def enters(x: Tensor) -> Tensor:
        inputs.append(x)
        return x

    def leaves(y: Any) -> None:
        first = y if isinstance(y, Tensor) else y[0]
        into[key] = inputs[-1][0], first[0]

    stack.enter_context(replace_input(module, enters))
    stack.enter_context(replace_output(module, leaves))
    return stack


def _freeze_layer(
    layer: Layer, norm_1: FrozenNorm, norm_2: FrozenNorm, weights: Tensor, null_value: Tensor | None
) -> FrozenLayer:
    values, bias = layer.weights("v")
    group = layer.heads // layer.kv_heads  # heads that share their values
    values = values.repeat_interleave(group, 0)
    outputs = layer.out_weights
    at_nothing = norm_1.shift @ values  # [heads, d]
    if bias is not None:
        at_nothing = at_nothing + bias[:, 0].repeat_interleave(group, 0)
    constant = torch.einsum("hqk,hd,hde->qe", weights, at_nothing, outputs)
    null_values = (
        torch.zeros_like(at_nothing) if null_value is None else null_value.repeat_interleave(group, 0)
    )
    constant = constant + torch.einsum("hq,hd,hde->qe", 1 - weights.sum(-1), null_values, outputs)
    out_bias = getattr(layer.out, "bias", None)
    if out_bias is not None:
        constant = constant + out_bias
    return FrozenLayer(norm_1, norm_2, weights, values, outputs, constant, null_values)


def _freeze_norm(norm: nn.Module, x: Tensor, y: Tensor, model: str) -> FrozenNorm:  # [T, D] each
    """Tell a layer norm from an RMS norm, and its gain and shift, by what it does to two probes; the denominators by what it
    did to the prompt."""
    probe = torch.ones_like(x[:1]) * 1e3
    probe[:, 1::2] *= -1
    plus, minus = norm(probe)[0], norm(-probe)[0]
    shift, gain = (plus + minus) / 2, (plus - minus) / 2 * probe[0].sign()
    moved = (
        norm(probe + 1e3)[0] - plus
    )  # a layer norm does not see it (an odd width has a mean of its own: far less)
    centred = bool(moved.abs().max() < 0.1 * gain.abs().max())
    linear = gain * (x - x.mean(-1, keepdim=True) if centred else x)
    inverse = ((y - shift) * linear).sum(-1) / (linear * linear).sum(-1).clamp_min(1e-30)  # 1 / sigma, [T]
    found = FrozenNorm(gain * inverse[:, None], centred, shift)
    off = (found.push(x) + shift - y).abs().max() / y.abs().max().clamp_min(1e-30)
    if not off < _CLOSE:
        raise EdgewiseError(
            f"{model}: {type(norm).__name__} is neither a layer norm nor an RMS norm; it cannot be traced"
        )
    return found


def _check_closes(frozen: Frozen, final: Tensor, model: str) -> None:
    """The linear function, with all its sources and constants, has to give what the model gave."""

    def written(number: int) -> Tensor:
        return frozen.mlp_outputs[number][None] + frozen.layers[number].constant[None]

    got = frozen.push(frozen.embedding[None], written, lambda *_: None)[0]
    off = (got - final).abs().max() / final.abs().max()
    if not off < _CLOSE:
        raise EdgewiseError(
            f"{model} does more to its residual stream than add what heads and MLPs write ({off:.1%} is missing); it cannot "
            "be traced"
        )
