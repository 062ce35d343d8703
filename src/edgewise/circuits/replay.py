"""Activation patching: record the clean and the corrupt run once, then replay them with something changed.

Recorded are the residual stream that enters each layer, each head's output, keys and values. A replay starts at the layer
where something is changed and at the first token where the two prompts differ (before it both runs are the same, and
attention reads their keys and values from the record); the last layer's MLP and the logits are computed only for the last
token, and for the answers.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from edgewise.circuits.partial_forward import (
    KeysValues,
    attend_to_prefix,
    fused_gelu,
    mlp_at_last,
    start_at_layer,
    unembed_answers,
    unembed_last,
)
from edgewise.core.errors import EdgewiseError, first_line
from edgewise.gating.activations import Edit
from edgewise.gating.tap import tap
from edgewise.models.architecture import decoder_layers
from edgewise.models.hooks import replace_forward, replace_input
from edgewise.tasks.pairs import Metric, Prompts, score


@dataclass(frozen=True)
class RecordedRun:
    """Activations of n prompts in one run, at the t tokens from the first on at which clean and corrupt differ."""

    hidden: list[Tensor]
    """Residual stream that enters each layer, [n, t, D]."""
    outputs: list[Tensor]
    """Head outputs of each layer, [n, heads, t, d]."""
    scores: Tensor
    """Metric, [n]."""

    def select(self, index: Tensor | slice) -> "RecordedRun":
        """The run of some of the prompts."""
        hidden, outputs = ([x[index] for x in layers] for layers in (self.hidden, self.outputs))
        return RecordedRun(hidden, outputs, self.scores[index])


@dataclass(frozen=True)
class Replay:
    """A model, n pairs of prompts, and their recorded runs."""

    model: PreTrainedModel
    prompts: Prompts
    metric: Metric
    clean: RecordedRun
    corrupt: RecordedRun
    prefix: list[KeysValues]
    """Keys and values of each layer at the tokens before `first`."""
    first: int
    """The first token at which a clean and a corrupt prompt differ."""

    @property
    def n(self) -> int:
        return len(self.prompts.last)

    @property
    def effect(self) -> Tensor:  # [n]
        """Clean minus corrupt metric: what a circuit has to explain."""
        return self.clean.scores - self.corrupt.scores

    def explained(self, scores: Tensor) -> Tensor:  # [..., n] -> [..., n]
        """Share of each prompt's effect: 1 for the clean run, 0 for the corrupt one."""
        return (scores - self.corrupt.scores) / self.effect

    def mean_explained(self, scores: Tensor) -> Tensor:  # [..., n] -> [...]
        """Share of the mean effect (faithfulness)."""
        return (scores - self.corrupt.scores).mean(-1) / self.effect.mean()

    def select(self, index: Tensor | slice) -> "Replay":
        """The runs of some of the prompts."""
        return replace(
            self,
            prompts=Prompts(*(x[index] for x in self.prompts)),
            clean=self.clean.select(index),
            corrupt=self.corrupt.select(index),
            prefix=[(k[index], v[index]) for k, v in self.prefix],
        )

    def scores(
        self, layer: int, hidden: Tensor, edit: Edit | None = None, *, all_positions: bool = False
    ) -> Tensor:  # [copies, n, t, D] -> [copies, n]
        """Metric of copies of the prompts that enter `layer` as `hidden`.

        edit: Called with the head outputs of this layer and later ones, [copies * n, heads, t, d]; may replace them.
        all_positions: Compute the last MLP at all tokens, for callers that record or replace it.
        """
        copies = len(hidden)
        prompts = Prompts(*(x.repeat(copies, *[1] * (x.ndim - 1)) for x in self.prompts))
        hidden, last = hidden.flatten(0, 1), prompts.last - self.first
        position = torch.arange(self.first, self.first + hidden.shape[1], device=hidden.device)[None]
        unembedding: Any = self.model.get_output_embeddings()
        answers_only = self.metric == "logit difference" and isinstance(unembedding, nn.Linear)
        with ExitStack() as stack:
            stack.enter_context(start_at_layer(self.model, layer, hidden))
            stack.enter_context(attend_to_prefix(self.model, self.prefix, copies, layer))
            stack.enter_context(fused_gelu(self.model))
            mlp = getattr(decoder_layers(self.model)[-1], "mlp", None)
            if not all_positions and isinstance(mlp, nn.Module):
                stack.enter_context(replace_forward(mlp, mlp_at_last(mlp, last)))
            if answers_only:
                unembed = unembed_answers(unembedding, last, prompts.columns)
            else:
                unembed = unembed_last(unembedding, last)
            stack.enter_context(replace_forward(unembedding, unembed))
            stack.enter_context(tap(self.model, edit={} if edit is None else {"outputs": edit}))
            logits = self.model(
                inputs_embeds=torch.zeros_like(hidden), position_ids=position, use_cache=False
            ).logits[:, 0]
        scores = (logits * prompts.signs).sum(-1) if answers_only else score(logits, prompts, self.metric)
        return scores.unflatten(0, (copies, self.n))


@torch.no_grad()
def record(model: PreTrainedModel, prompts: Prompts, metric: Metric, reuse_prefix: bool = True) -> Replay:
    """Run both prompts of every pair once; with `reuse_prefix`, replays skip the tokens at which all pairs agree, where the
    model allows it. Refuses a model whose replays with nothing changed are not the clean run."""
    model.eval()
    differs = (prompts.clean != prompts.corrupt).any(0)
    if not differs.any():
        raise EdgewiseError("the clean and the corrupt prompts are the same: there is nothing to patch")
    text: Any = model.config.get_text_config()
    window = getattr(text, "sliding_window", None)
    if window is not None and window < prompts.clean.shape[1]:
        reuse_prefix = False  # the mask of a window that is shorter than the prompt covers all of its tokens
    for first in (int(differs.nonzero()[0]) if reuse_prefix else 0, 0):
        clean, prefix = _record_run(model, prompts.clean, prompts, metric, first)
        corrupt, _ = _record_run(model, prompts.corrupt, prompts, metric, first)
        replay = Replay(model, prompts, metric, clean, corrupt, prefix, first)
        problem = _replay_problem(replay.select(slice(0, 1)))
        if problem is None:
            return replay
        if not first:
            break
    raise EdgewiseError(
        f"{type(model).__name__} cannot be run from a layer on: {problem}; its circuits cannot be found"
    )


def _replay_problem(replay: Replay) -> str | None:
    """Why replays of the clean run, from the first layer and from the last, are not the clean run; None if they are."""
    for layer in {0, len(replay.clean.hidden) - 1}:
        try:
            scores = replay.scores(layer, replay.clean.hidden[layer][None])[0]
        except Exception as error:  # of a host that keeps state between its layers, or masks of its own
            return first_line(error)
        tolerance = 1e-3 if replay.model.dtype in (torch.float32, torch.float64) else 0.1
        difference = (scores - replay.clean.scores).abs().max().item()
        if not difference <= tolerance * max(1.0, replay.clean.scores.abs().max().item()):
            return f"a replay of the clean run is off by {difference:.2g}"
    return None


def _record_run(
    model: PreTrainedModel, ids: Tensor, prompts: Prompts, metric: Metric, first: int
) -> tuple[RecordedRun, list[KeysValues]]:
    layers, hidden = decoder_layers(model), {}
    unembedding: Any = model.get_output_embeddings()
    with ExitStack() as stack:
        for i, layer in enumerate(layers):
            stack.enter_context(replace_input(layer, lambda x, i=i: hidden.setdefault(i, x)))
        stack.enter_context(replace_forward(unembedding, unembed_last(unembedding, prompts.last)))
        attention = stack.enter_context(tap(model, read=["keys", "values", "outputs"]))
        logits = model(input_ids=ids, use_cache=False).logits[:, 0]
    scores = score(logits, prompts, metric)
    keys, values, outputs = (attention.last[name] for name in ("keys", "values", "outputs"))
    order = range(len(layers))
    run = RecordedRun(
        hidden=[hidden[i][:, first:].contiguous() for i in order],
        outputs=[outputs[i][:, :, first:].contiguous() for i in order],
        scores=scores,
    )
    return run, [(keys[i][:, :, :first], values[i][:, :, :first]) for i in order]
