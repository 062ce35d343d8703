"""The backward pass between two passes of the model, through means and slopes: coefficients of an exactly linear function.

With both passes the same, its coefficients are gradients with attention, denominators and errors frozen.
"""

import torch
from torch import Tensor

from edgewise.models.linearised_pass import LinearisedNorm
from edgewise.tracing.ablations import Changes
from edgewise.tracing.graph import Graph
from edgewise.tracing.replaced_model import NormState, PassState


class Secant:
    """How the log odds change from one pass of n ablated sequences to another, `step` of the removal further on."""

    def __init__(
        self, graph: Graph, change: Changes, before: PassState, after: PassState, step: float
    ) -> None:
        self.graph, self.change, self.before, self.after, self.step = graph, change, before, after, step
        n, n_layers = len(change.ablations), len(graph.linear.layers)
        self.values = graph.linear.embedding.new_zeros(n)
        self.norms, self.errors = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.attention = self.values.new_zeros(n, n_layers, graph.linear.n_heads)
        self.weight_gradients: list[Tensor] = []
        """At each layer's attention weights, [n, heads, T, T]."""
        self.norm_gradients: list[Tensor] = []
        """At the ratio of each denominator, [n, T]: norm_1 of all layers, norm_2 of all layers, the final norm, then
        the norms after attention and after MLPs, if there are any."""
        self._mlp_gradients: dict[int, Tensor] = {}
        self._pull()

    def _pull(self) -> None:
        graph, linear, before, after = self.graph, self.graph.linear, self.before, self.after
        of_norm_1, of_norm_2, of_posts = [], [], {}
        g = linear.embedding.new_zeros(len(self.change.ablations), linear.length, linear.width)
        g[:, -1] = graph.logits.mean_direction(before.logits, after.logits)
        g, of_final = self._norm(linear.final_norm, before.final_norm[0], after.final_norm[0], g)
        for number in reversed(range(len(linear.layers))):
            layer = linear.layers[number]
            at_write, of_posts["mlp", number] = self._post(number, "post_mlp", g)
            self._written(number, layer.multiplier * at_write)
            at_mlp = self._features(number, layer.multiplier * at_write)
            at_mlp, of_norm = self._norm(layer.norm_2, before.norm_2[number], after.norm_2[number], at_mlp)
            of_norm_2.insert(0, of_norm)
            at_write = g if linear.parallel else g + at_mlp
            at_write, of_posts["attention", number] = self._post(number, "post_attention", at_write)
            at_values = self._heads(number, layer.at_heads(at_write))
            at_norm = torch.einsum("nhkd,hed->nke", at_values, layer.values)
            at_norm, of_norm = self._norm(layer.norm_1, before.norm_1[number], after.norm_1[number], at_norm)
            of_norm_1.insert(0, of_norm)
            g = g + at_mlp + at_norm
        self.values += self.step * (g * self.change.embedding).sum((1, 2))
        posts = [of_posts[kind, i] for kind in ("attention", "mlp") for i in range(len(linear.layers))]
        self.norm_gradients = [*of_norm_1, *of_norm_2, of_final, *(x for x in posts if x is not None)]

    def _post(self, number: int, kind: str, g: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients at the input of a norm after a sublayer, and at its ratio; g itself if there is no such norm."""
        layer = self.graph.linear.layers[number]
        norm = getattr(layer, kind)
        if norm is None:
            return g, None
        before, after = (getattr(state, kind)[number] for state in (self.before, self.after))
        return self._norm(norm, before, after, g, layer.multiplier)

    def _written(self, number: int, g: Tensor) -> None:
        """Count what is subtracted from an MLP's output, and the change of its error."""
        self._mlp_gradients[number] = g
        write = self.change.writes[number]
        if write is not None:
            self.values += self.step * (g * write).sum((1, 2))
        self.errors += (g * (self.after.errors[number] - self.before.errors[number])).sum((1, 2))

    def _norm(
        self, norm: LinearisedNorm, before: NormState, after: NormState, g: Tensor, multiplier: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Gradients at a norm's input and at its denominator's ratio, from those at its output."""
        at_ratio = multiplier * (g * (before.pushed + after.pushed) / 2).sum(-1)
        self.norms += (at_ratio * (after.ratio - before.ratio)).sum(1)
        return norm.pull(g * ((before.ratio + after.ratio) / 2)[..., None]), at_ratio

    def _features(self, number: int, g: Tensor) -> Tensor:
        """Gradient at the input of a layer's features from those at all MLP outputs that they write to."""
        transcoder = self.graph.transcoder
        writes = transcoder.writes(number)
        at_activation = g @ writes[:, 0].T
        for later in transcoder.outputs_of(number)[1:]:
            at_activation = at_activation + self._mlp_gradients[later] @ writes[:, later - number].T
        h, h_after = self.before.preactivations[number], self.after.preactivations[number]
        a, a_after = self.before.activations[number], self.after.activations[number]
        moved = h_after != h
        slope = torch.where(moved, (a_after - a) / torch.where(moved, h_after - h, 1.0), (a > 0).to(a))
        encoders, _ = transcoder.reads(number)
        return (slope * at_activation) @ encoders

    def _heads(self, number: int, g: Tensor) -> Tensor:  # [n, heads, T, d]
        """Gradients at the values from those at the heads' outputs."""
        g = g.clone()
        for row, head in self.change.of_heads(number):
            # nothing before it changes: its own output is the same all along, and fades out
            removed = self.before.weights[number][row, head] @ self.before.values[number][row, head]
            self.values[row] -= self.step * (g[row, head] * removed).sum()
            g[row, head] = 0
        A, A_after = self.before.weights[number], self.after.weights[number]
        values = (self.before.values[number] + self.after.values[number]) / 2
        at_weights = torch.einsum("nhqd,nhkd->nhqk", g, values)
        self.weight_gradients.insert(0, at_weights)
        self.attention[:, number] += (at_weights * (A_after - A)).sum((2, 3))
        return torch.einsum("nhqk,nhqd->nhkd", (A + A_after) / 2, g)
