"""Read what a flow shows: which attention edges are open in a model on a prompt, and with what weight."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.flow.result import Edge, Flow, Flows
from edgewise.gating.edge_gate import gate_config
from edgewise.gating.tap import tap
from edgewise.measure.evaluation import evaluating
from edgewise.models.checkpoint import load, name_of, shared_tokenizer
from edgewise.pocket import addition
from edgewise.tasks.prompt import read_prompt

SUMS = ("53+21", "36+28", "43+59")
"""No carry, one, and two."""
LONGEST = 128
"""Tokens that can be told apart in one picture."""
_SUM = re.compile(r"\s*(\d\s*\d)\s*\+\s*(\d\s*\d)\s*=?[\s?]*")


def collect_flow(
    models: Sequence[str | PreTrainedModel],
    prompts: str | Sequence[str] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Flows:
    """Read the open edges of one model, or of a dense model and its twin, on each prompt.

    Models are names (see `edgewise.load`) or loaded models; with loaded models, bring their tokenizer. An addition model
    reads sums, 53+21; without a prompt it gets three, with no carry, one and two.
    """
    if not 1 <= len(models) <= 2:
        raise EdgewiseError(f"a flow is drawn of one model or of two, not {len(models)}")
    tokenizer = tokenizer or shared_tokenizer(models)
    texts = _texts([prompts] if isinstance(prompts, str) else prompts, tokenizer)
    rows = []
    for place, model in enumerate(models):
        loaded = load(model) if isinstance(model, str) else model
        rows.append(
            [_read(loaded, name_of(model, place), prompt, text, tokenizer) for prompt, text in texts.items()]
        )
    return Flows(rows)


def _adds(tokenizer: PreTrainedTokenizerBase) -> bool:
    return tokenizer.get_vocab().keys() == {*addition.VOCABULARY}


def _texts(prompts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Prompts, as they are shown, with what the model reads."""
    if not _adds(tokenizer):
        if not prompts or not all(prompt.strip() for prompt in prompts):
            raise EdgewiseError("give a prompt: --prompt TEXT")
        return {prompt: prompt for prompt in prompts}
    texts = {}
    for prompt in prompts or SUMS:
        found = _SUM.fullmatch(prompt)
        if not found:
            raise EdgewiseError(f"an addition model reads sums of two-digit numbers, 53+21=, not {prompt!r}")
        total = f"{found[1]}+{found[2]}".replace(" ", "")
        texts[total] = f"{total}=?????"
    return texts


def _read(model: Any, name: str, prompt: str, text: str, tokenizer: Any) -> Flow:
    read = read_prompt(model, name, tokenizer, text, LONGEST)
    tokens = read.tokens
    ids = torch.tensor([read.ids], device=model.device)
    with torch.no_grad(), evaluating(model), tap(model, read=["weights"]) as seen:
        said = model(input_ids=ids, use_cache=False).logits[0].argmax(-1).tolist()
    weights = {layer: x[0].float().cpu() for layer, x in sorted(seen.last["weights"].items())}
    asked = [token == "?" for token in tokens] if _adds(tokenizer) else [False] * (len(tokens) - 1) + [True]
    answers = [tokenizer.decode([i]) if here else "" for i, here in zip(said, asked, strict=True)]
    return Flow(
        model=name,
        kind="dense" if gate_config(model) is None else "sparse",
        prompt=prompt,
        tokens=tokens,
        answers=answers,
        layers=max(weights) + 1,
        heads=max(x.shape[0] for x in weights.values()),
        edges=[edge for layer, x in weights.items() for edge in _open(layer, x)],
    )


def _open(layer: int, weights: Tensor) -> Iterator[Edge]:  # [heads, t, t]
    values = weights.tolist()
    for head, query, key in weights.nonzero().tolist():
        yield Edge(layer, head, query, key, float(f"{values[head][query][key]:.4g}"))
