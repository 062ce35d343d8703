"""Run prompts again with something changed, and compute only what the change can reach.

A pair of prompts is run once clean and once corrupt, and recorded: what enters each layer, each head's output, the keys and
values. A replay then starts at the layer where something is changed, at the first token where the two texts differ (before
it the two runs are the same, and attention finds their keys and values in the record), and the last layer's MLP and the
logits are computed only for the last token, and for the answers.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation

from edgewise.core.errors import EdgewiseError
from edgewise.gating.activations import Edit
from edgewise.gating.edge_gate import gates_of
from edgewise.gating.tap import tap
from edgewise.models.architecture import decoder_layers
from edgewise.models.hooks import replace_forward, replace_input
from edgewise.tasks.pairs import Metric, Prompts, score

Hook = Callable[..., Any]


@dataclass(frozen=True)
class Recorded:
    """One run of all prompts, from the first token on that differs."""

    hidden: list[Tensor]
    """What enters each layer, [n, t, D]."""
    outputs: list[Tensor]
    """Each layer's heads, [n, heads, t, d]."""
    scores: Tensor
    """The metric of each prompt, [n]."""


@dataclass(frozen=True)
class Replay:
    """A model, pairs of prompts, and what was recorded of them."""

    model: PreTrainedModel
    prompts: Prompts
    metric: Metric
    clean: Recorded
    corrupt: Recorded
    prefix: list[tuple[Tensor, Tensor]]
    """Each layer's keys and values before the first token that differs, [n, kv_heads, first, d]."""
    first: int

    @property
    def n(self) -> int:
        return len(self.prompts.last)

    @property
    def effect(self) -> Tensor:  # [n]
        """What there is to explain, prompt by prompt."""
        return self.clean.scores - self.corrupt.scores

    def share(self, scores: Tensor) -> Tensor:  # [..., n] -> [..., n]
        """The share of the effect that is there: 1 for the clean run, 0 for the corrupt one."""
        return (scores - self.corrupt.scores) / self.effect

    def pooled_share(self, scores: Tensor) -> Tensor:  # [..., n] -> [...]
        """The same for the mean over prompts."""
        return (scores - self.corrupt.scores).mean(-1) / self.effect.mean()

    def of_prompts(self, which: Tensor | slice) -> "Replay":
        """The same for some of the prompts."""
        prompts = Prompts(*(x[which] for x in self.prompts))

        def part(recorded: Recorded) -> Recorded:
            hidden, outputs = ([x[which] for x in xs] for xs in (recorded.hidden, recorded.outputs))
            return Recorded(hidden, outputs, recorded.scores[which])

        prefix = [(k[which], v[which]) for k, v in self.prefix]
        return replace(
            self, prompts=prompts, clean=part(self.clean), corrupt=part(self.corrupt), prefix=prefix
        )

    def scores(
        self, layer: int, hidden: Tensor, outputs: Edit | None = None, whole: bool = False
    ) -> Tensor:  # [copies, n, t, D] -> [copies, n]
        """The metric of copies of the prompts that enter `layer` as `hidden`; `outputs` may edit heads' outputs there and
        later, [copies * n, heads, t, d]. `whole` computes the last MLP at all positions, for those who watch it."""
        copies = hidden.shape[0]
        return self._run(layer, hidden.flatten(0, 1), outputs, whole).unflatten(0, (copies, self.n))

    def _run(self, layer: int, hidden: Tensor, outputs: Edit | None, whole: bool) -> Tensor:
        copies = len(hidden) // self.n
        prompts = Prompts(*(x.repeat(copies, *[1] * (x.ndim - 1)) for x in self.prompts))
        layers, model = decoder_layers(self.model), self.model
        head: Any = model.get_output_embeddings()
        position = torch.arange(self.first, self.first + hidden.shape[1], device=hidden.device)[None]
        few = self.metric == "logit difference" and isinstance(head, nn.Linear)
        with ExitStack() as stack:
            for each in layers[:layer]:
                stack.enter_context(
                    replace_forward(each, lambda hidden_states, *args, **kwargs: hidden_states)
                )
            stack.enter_context(replace_input(layers[layer], lambda _: hidden))
            stack.enter_context(_continuing(model, self.prefix, copies, layer))
            for module in model.modules():
                if isinstance(module, NewGELUActivation):  # the same function in one pass instead of eight
                    stack.enter_context(replace_forward(module, partial(F.gelu, approximate="tanh")))
            mlp = getattr(layers[-1], "mlp", None)
            if not whole and isinstance(mlp, nn.Module):
                stack.enter_context(replace_forward(mlp, _last_token_only(mlp, prompts, self.first)))
            unembed = (
                _answers_only(head, prompts, self.first) if few else _last_only(head, prompts, self.first)
            )
            stack.enter_context(replace_forward(head, unembed))
            stack.enter_context(tap(model, edit={} if outputs is None else {"outputs": outputs}))
            logits = model(
                inputs_embeds=torch.zeros_like(hidden), position_ids=position, use_cache=False
            ).logits[:, 0]
        if few:
            return (logits.to(torch.promote_types(logits.dtype, torch.float32)) * prompts.signs).sum(-1)
        return score(logits, prompts, self.metric)


@torch.no_grad()
def record(model: PreTrainedModel, prompts: Prompts, metric: Metric, reuse_prefix: bool = True) -> Replay:
    """Run both prompts of every pair once."""
    model.eval()
    differs = (prompts.clean != prompts.corrupt).any(0)
    if not differs.any():
        raise EdgewiseError("the clean and the corrupt prompts are the same: there is nothing to patch")
    text: Any = model.config.get_text_config()
    length = prompts.clean.shape[1]
    windows = getattr(text, "sliding_window", None)
    # a window that is shorter than the text comes as a mask over the whole of it
    whole = not reuse_prefix or (windows is not None and windows < length)
    first = 0 if whole else int(differs.nonzero()[0])
    clean, prefix = _record(model, prompts.clean, prompts, metric, first)
    corrupt, _ = _record(model, prompts.corrupt, prompts, metric, first)
    return Replay(model, prompts, metric, clean, corrupt, prefix, first)


def _record(
    model: PreTrainedModel, ids: Tensor, prompts: Prompts, metric: Metric, first: int
) -> tuple[Recorded, list[tuple[Tensor, Tensor]]]:
    layers, hidden = decoder_layers(model), {}
    head: Any = model.get_output_embeddings()
    with ExitStack() as stack:
        for i, layer in enumerate(layers):
            stack.enter_context(replace_input(layer, lambda x, i=i: hidden.setdefault(i, x)))
        stack.enter_context(replace_forward(head, _last_only(head, prompts, 0)))
        seen = stack.enter_context(tap(model, read=["keys", "values", "outputs"]))
        logits = model(input_ids=ids, use_cache=False).logits[:, 0]
    scores = score(logits, prompts, metric)
    order = range(len(layers))
    prefix = [(seen.last["keys"][i][:, :, :first], seen.last["values"][i][:, :, :first]) for i in order]
    outputs = [seen.last["outputs"][i][:, :, first:].contiguous() for i in order]
    return Recorded([hidden[i][:, first:].contiguous() for i in order], outputs, scores), prefix


# ---------------------------------------------------------------------------------------------- changing what a module does


@contextmanager
def _continuing(
    model: nn.Module, prefix: list[tuple[Tensor, Tensor]], copies: int, layer: int
) -> Iterator[None]:
    """Let attention find keys and values of what comes before, in a layer and in later ones."""
    gates = gates_of(model)
    for gate, (k, v) in zip(gates, prefix, strict=True):
        if k.shape[2] and gate.layer >= layer:
            gate.prefix = k.repeat(copies, 1, 1, 1), v.repeat(copies, 1, 1, 1)
    try:
        yield
    finally:
        for gate in gates:
            gate.prefix = None


def _last(hidden: Tensor, prompts: Prompts, first: int) -> Tensor:  # [rows, t, D] -> [rows, D]
    return hidden[torch.arange(len(hidden), device=hidden.device), prompts.last - first]


def _last_token_only(mlp: nn.Module, prompts: Prompts, first: int) -> Hook:
    """What an MLP gives at the last token, and 0 elsewhere, where nothing reads it."""
    own = mlp.forward

    def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        last = own(_last(hidden, prompts, first)[:, None], *args, **kwargs)
        if not isinstance(last, Tensor):  # a mixture of experts tells more than that
            return own(hidden, *args, **kwargs)
        rows = torch.arange(len(hidden), device=hidden.device)
        return torch.zeros_like(hidden).index_put((rows, prompts.last - first), last[:, 0])

    return forward


def _last_only(head: nn.Module, prompts: Prompts, first: int) -> Hook:
    """Logits of the last token only, [rows, 1, vocabulary]."""
    own = head.forward
    return lambda hidden: own(_last(hidden, prompts, first)[:, None])


def _answers_only(head: Any, prompts: Prompts, first: int) -> Hook:
    """Logits of the last token and the answers only, [rows, 1, c]: a softmax needs the others, a difference does not."""
    columns = head.weight[prompts.columns]  # [rows, c, D]
    bias = None if head.bias is None else head.bias[prompts.columns][:, None]

    def forward(hidden: Tensor) -> Tensor:
        logits = _last(hidden, prompts, first)[:, None] @ columns.mT
        return logits if bias is None else logits + bias

    return forward
