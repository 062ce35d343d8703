"""One attention layer's gate as a module, and access to the gates of a model."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.gating.activations import Activations, EdgeCounts, Site
from edgewise.gating.config import GateConfig
from edgewise.kernels.dispatch import gated_attention
from edgewise.kernels.equations import AttentionOutput, GateSpec, Mode, reference
from edgewise.kernels.noise import draw_seed


class HeadShape(NamedTuple):
    """Sizes of one attention layer."""

    heads: int
    kv_heads: int
    width: int  # of a value


class EdgeGate(nn.Module):
    """One layer's gate: threshold offset b, null value, mode and open taps. Without a config it is always dense."""

    def __init__(self, layer: int, shape: HeadShape, config: GateConfig | None, device: torch.device) -> None:
        super().__init__()
        self.layer, self.shape, self.config = layer, shape, config
        self.heads, self.kv_heads, self.width = shape
        self.mode: Mode = "deterministic"  # also in training mode: only `mode` changes it
        # (seed, first_sequence); None: seed from torch's generator. A seed that is a tensor needs no recompilation
        self.noise: tuple[int | Tensor, int] | None = None
        self.backend: str | None = None  # a name from kernels/operator.py; None: the fastest on the device
        self.prefix: tuple[Tensor, Tensor] | None = None  # cached keys and values of a shared prompt prefix
        self.taps: list[Activations] = []
        self.kept: tuple[int, ...] | None = None  # heads that a compacted layer still has, None: all
        self.all_heads = shape.heads  # before it was compacted
        self.b: Tensor  # [heads]
        offset = 0.0 if config is None else config.b
        b = torch.full((shape.heads,), offset, device=device, dtype=torch.float32)
        if config is not None and config.learned:
            self.b = nn.Parameter(b)
        else:
            # saved with every twin, constant or not, so that the weights alone tell a twin from a dense model
            self.register_buffer("b", b, persistent=config is not None)
        # bool, [heads]: heads that training has closed for good; None: none. They get no gradient
        self.frozen_heads: Tensor | None
        self.register_buffer("frozen_heads", None, persistent=False)
        self.null_value: nn.Parameter | None = None  # [kv_heads, width]
        if config is not None and config.null_value:
            self.null_value = nn.Parameter(torch.zeros(shape[1:], device=device, dtype=torch.float32))

    def extra_repr(self) -> str:
        gate = "dense" if self.config is None else f"{self.config}, mode={self.mode!r}"
        return f"layer={self.layer}, heads={self.heads}, {gate}"

    def __deepcopy__(self, memo: dict) -> "EdgeGate":
        # taps belong to a `with` block around the original, not to its copy
        copy = EdgeGate(self.layer, self.shape, self.config, self.b.device).to(self.b.dtype)
        memo[id(self)] = copy
        with torch.no_grad():
            copy.b.copy_(self.b)
        copy.b.requires_grad_(self.b.requires_grad)
        if self.null_value is not None:
            copy.null_value = nn.Parameter(self.null_value.detach().clone(), self.null_value.requires_grad)
        copy.mode, copy.backend = self.mode, self.backend
        copy.kept, copy.all_heads = self.kept, self.all_heads
        if self.frozen_heads is not None:
            copy.frozen_heads = self.frozen_heads.clone()
        return copy.train(self.training)

    def forward(
        self,
        q: Tensor,  # [batch, heads, queries, d]
        k: Tensor,  # [batch, kv_heads, keys, d]
        v: Tensor,  # [batch, kv_heads, keys, d_v]
        scale: float,
        mask: Tensor | None,  # bool, [1 or batch, 1 or heads, queries, keys]
        return_weights: bool = False,
        starts: Tensor | None = None,  # int, [1 or batch, queries]: first visible key of each query
    ) -> AttentionOutput:
        """Gated attention: the blocked kernels, or the reference where a queries x keys matrix is read or edited."""
        dtype = v.dtype
        v = self._subtract_null_value(v)
        k, v = self._prepend_prefix(k, v, mask if starts is None else starts)
        q, k, v = self._observe("queries", q), self._observe("keys", k), self._observe("values", v)
        spec = self._spec(scale, mask)._replace(starts=starts)
        if return_weights or any(tap.needs_matrices for tap in self.taps):
            output = reference(q, k, v, self.b, spec, edit=self._observe)
        else:
            output = gated_attention(q, k, v, self.b, spec, self.backend)
        self._count_edges(output, q, k, mask, starts)
        y = self._add_null_value(output.y, dtype)
        return output._replace(y=self._observe("outputs", y))

    def _subtract_null_value(self, v: Tensor) -> Tensor:
        return v if self.null_value is None else v - self.null_value[:, None]

    def _add_null_value(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        if self.null_value is None:
            return y
        per_head = self.null_value.repeat_interleave(self.heads // self.kv_heads, 0)  # [heads, width]
        return (y + per_head[:, None]).to(dtype)

    def _prepend_prefix(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.prefix is None:
            return k, v
        if mask is not None:
            raise EdgewiseError("a cached prefix and an attention mask cannot be combined")
        prefix_k, prefix_v = self.prefix
        return torch.cat([prefix_k, k], 2), torch.cat([prefix_v, v], 2)

    def _spec(self, scale: float, mask: Tensor | None) -> GateSpec:
        if self.config is None:
            return GateSpec(0.0, "dense", scale, mask)
        seed, first_sequence = self.noise or (draw_seed() if self.mode == "sample" else 0, 0)
        return GateSpec(
            self.config.kappa,
            self.mode,
            scale,
            mask,
            self.config.sinks,
            seed,
            first_sequence,
            closed=self.closed_heads(),
            counts=bool(self.taps),
        )

    def closed_heads(self) -> Tensor | None:
        """Heads whose gates cannot open, bool [heads], which are skipped; None if there are none.

        Proven by the weights alone: with kappa = 1 a head with b <= 0 cannot open, because no weight exceeds 1. In training
        only `frozen_heads` count: noise may still open the others, and the straight-through gradient must reach them.
        """
        if self.training or self.mode != "deterministic" or self.config is None or self.config.kappa != 1:
            return self.frozen_heads
        return self.b.detach() <= 0

    def _observe(self, site: Site, x: Tensor) -> Tensor:
        for tap in self.taps:
            x = tap.observe(site, self.layer, x)
        return x

    def _count_edges(
        self, output: AttentionOutput, q: Tensor, k: Tensor, mask: Tensor | None, starts: Tensor | None
    ) -> None:
        if not self.taps:
            return
        expected, opened = self._of_all_heads(output.expected_edges), self._of_all_heads(output.open_edges)
        counts = EdgeCounts(self.layer, expected, opened, *_count_visible(q, k, mask, starts))
        for tap in self.taps:
            tap.counts.append(counts)

    def _of_all_heads(self, edges: Tensor) -> Tensor:  # [batch, heads] -> [batch, all_heads]
        """Edge counts with those of removed heads, which have none."""
        if self.kept is None:
            return edges
        index = torch.tensor(self.kept, device=edges.device)
        return edges.new_zeros(len(edges), self.all_heads).index_copy(1, index, edges)


def _count_visible(q: Tensor, k: Tensor, mask: Tensor | None, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Visible (query, key) pairs, and queries with at least one visible key, each [batch, 1 or heads]."""
    batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
    if mask is not None:
        return mask.sum((-2, -1)).expand(batch, -1), mask.any(-1).sum(-1).expand(batch, -1)
    if starts is not None:  # a query sees at least itself
        own = torch.arange(keys - queries, keys, device=q.device)
        pairs = (own + 1 - starts).sum(-1, keepdim=True).expand(batch, 1)
        return pairs, torch.full_like(pairs, queries)
    pairs = queries * (keys - queries) + queries * (queries + 1) // 2
    return torch.full((batch, 1), pairs, device=q.device), torch.full((batch, 1), queries, device=q.device)


def gates_of(model: nn.Module) -> list[EdgeGate]:
    """The gate of each attention layer, in layer order."""
    gates = [module for module in model.modules() if isinstance(module, EdgeGate)]
    if not gates:
        raise EdgewiseError(
            "this model was not loaded by edgewise; use edgewise.load(...), or edgewise.install(model) first"
        )
    return sorted(gates, key=lambda gate: gate.layer)


def kept_heads(model: nn.Module) -> list[list[int]] | None:
    """The heads that each layer of a compacted twin has kept; None for any other model."""
    gates = gates_of(model)
    if all(gate.kept is None for gate in gates):
        return None
    return [list(gate.kept or range(gate.heads)) for gate in gates]


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The host's attention modules, each of which holds a gate, in layer order."""
    holders = {gate: module for module in model.modules() if (gate := getattr(module, "edge_gate", None))}
    return [holders[gate] for gate in gates_of(model)]


def gate_config(model: nn.Module) -> GateConfig | None:
    """A model's gate configuration, or None if it is dense."""
    return gates_of(model)[0].config


def mode(model: nn.Module, mode: Mode) -> AbstractContextManager[Any]:
    """Set how a model's gates open: "deterministic" (as loaded), "sample" (with noise, as in training) or "dense" (all).

    >>> edgewise.mode(model, "sample")         # from now on
    >>> with edgewise.mode(model, "dense"):    # inside the block
    ...     model(input_ids=ids)

    `model.train()` and `model.eval()` do not change it; `print(model)` shows it. It belongs to the model, not to a thread:
    threads that need different modes at the same time need a copy of the model each.
    """
    if mode not in get_args(Mode):
        raise EdgewiseError(f"unknown mode {mode!r}; the modes are: {', '.join(get_args(Mode))}")
    restore = ExitStack()
    for gate in gates_of(model):
        restore.callback(setattr, gate, "mode", gate.mode)
        gate.mode = mode
    return restore
