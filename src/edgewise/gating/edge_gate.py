"""The gate of one attention layer, as a module: where its offset, its mode and the taps on it live."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from edgewise.core.errors import EdgewiseError
from edgewise.gating.config import GateConfig
from edgewise.kernels.equations import Gated, Mode, draw_seed, gated_attention, reference

if TYPE_CHECKING:
    from edgewise.gating.tap import Tap


class EdgeGate(nn.Module):
    """One layer's gate: its offset b, the value of attending to nothing, its mode, and the taps that are open on it. Without
    a config it is always dense."""

    def __init__(
        self,
        layer: int,
        heads: int,
        kv_heads: int,
        width: int,
        config: GateConfig | None,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.width, self.config = layer, heads, kv_heads, width, config
        self.mode: Mode | None = None  # None: sample while training, deterministic otherwise
        self.noise: tuple[int, int] | None = None  # seed and first row; None: a seed from torch's generator
        self.prefix: tuple[Tensor, Tensor] | None = (
            None  # keys and values of a text that this one goes on from
        )
        self.taps: list[Tap] = []
        self.b: Tensor  # [heads]
        b = torch.full((heads,), 0.0 if config is None else config.b, device=device, dtype=torch.float32)
        if config is not None and config.learned:
            self.b = nn.Parameter(b)
        else:
            # in the state dict of every twin, so that its weights alone already tell what they are
            self.register_buffer("b", b, persistent=config is not None)
        self.null_value: nn.Parameter | None = None  # [kv_heads, width]
        if config is not None and config.null_value:
            self.null_value = nn.Parameter(torch.zeros(kv_heads, width, device=device, dtype=torch.float32))

    def extra_repr(self) -> str:
        return f"layer={self.layer}, heads={self.heads}, {self.config or 'dense'}"

    def __deepcopy__(self, memo: dict) -> "EdgeGate":
        # taps belong to a `with` block around the original, not to its copy
        copy = EdgeGate(self.layer, self.heads, self.kv_heads, self.width, self.config, self.b.device)
        memo[id(self)] = copy
        copy.b.data = self.b.data.clone()
        copy.b.requires_grad_(self.b.requires_grad)
        if self.null_value is not None:
            copy.null_value = nn.Parameter(self.null_value.data.clone(), self.null_value.requires_grad)
        copy.mode = self.mode
        return copy.train(self.training)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, return_weights: bool
    ) -> Gated:
        """Attend through the gate: blocks by default, the reference where a T x T matrix is asked for."""
        mode, kappa = self._mode(), 0.0 if self.config is None else self.config.kappa
        dtype = v.dtype
        if self.null_value is not None:
            v = v - self.null_value[:, None]
        if self.prefix is not None:
            if mask is not None:
                raise EdgewiseError("a text that goes on after another cannot have a mask of its own")
            k, v = (torch.cat([before, x], 2) for before, x in zip(self.prefix, (k, v), strict=True))
        q, k, v = self._passes("queries", q), self._passes("keys", k), self._passes("values", v)
        sinks = self.config is None or self.config.sinks
        seed, first_row = self.noise or (draw_seed() if mode == "sample" else 0, 0)
        if return_weights or any(tap.needs_matrices for tap in self.taps):
            gated = reference(q, k, v, self.b, kappa, mode, scale, mask, seed, first_row, self._passes, sinks)
        else:
            gated = gated_attention(q, k, v, self.b, kappa, mode, scale, mask, seed, first_row, sinks)
        if self.taps:
            pairs, queries = _in_sight_counts(q, k, mask)
            for tap in self.taps:
                tap.count(self.layer, gated, pairs, queries)
        y = gated.y
        if self.null_value is not None:
            y = (y + self.null_value.repeat_interleave(self.heads // self.kv_heads, 0)[:, None]).to(dtype)
        return gated._replace(y=self._passes("outputs", y))

    def _mode(self) -> Mode:
        if self.config is None:
            return "dense"
        return self.mode or ("sample" if self.training else "deterministic")

    def _passes(self, what: Any, x: Tensor) -> Tensor:
        for tap in self.taps:
            x = tap.passes(what, self.layer, x)
        return x


def _in_sight_counts(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Pairs in sight and queries that see something, [batch, 1 or heads] each."""
    batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
    if mask is not None:
        return mask.sum((-2, -1)).expand(batch, -1), mask.any(-1).sum(-1).expand(batch, -1)
    pairs = queries * (keys - queries) + queries * (queries + 1) // 2
    return torch.full((batch, 1), pairs, device=q.device), torch.full((batch, 1), queries, device=q.device)


def gates_of(model: nn.Module) -> list[EdgeGate]:
    """The gate of each attention layer, in the order of layers."""
    gates = [module for module in model.modules() if isinstance(module, EdgeGate)]
    if not gates:
        raise EdgewiseError(
            "this model was not loaded by edgewise; use edgewise.load(...), or edgewise.install(model) first"
        )
    return sorted(gates, key=lambda gate: gate.layer)


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The host's own attention modules, each with its gate, in the order of layers."""
    holders = {gate: module for module in model.modules() if (gate := getattr(module, "edge_gate", None))}
    return [holders[gate] for gate in gates_of(model)]


def gate_config(model: nn.Module) -> GateConfig | None:
    """A model's gate, or None if it is dense."""
    return gates_of(model)[0].config


@contextmanager
def mode(model: nn.Module, mode: Mode) -> Iterator[None]:
    """Hold a model's gates in one mode for a `with` block: "dense", "sample" or "deterministic".

    Outside such a block they sample while `model.training` and are deterministic otherwise.
    """
    if mode not in get_args(Mode):
        raise EdgewiseError(f"unknown mode {mode!r}; the modes are: {', '.join(get_args(Mode))}")
    gates = gates_of(model)
    before: list[Mode | None] = [gate.mode for gate in gates]
    try:
        for gate in gates:
            gate.mode = mode
        yield
    finally:
        for gate, old in zip(gates, before, strict=True):
            gate.mode = old
