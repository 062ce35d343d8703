"""Collect the open attention edges of models on prompts, with their weights."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import config_of
from edgewise.flow.config import FlowConfig
from edgewise.flow.result import Edge, Flow, Flows
from edgewise.gating.tap import tap
from edgewise.measure.forward import eval_mode
from edgewise.models.loaded import LoadedModels, ModelsLike, load_models
from edgewise.models.registry import PromptFormat, embedded_for
from edgewise.tasks.prompt import encode_prompt

MAX_TOKENS = 128
"""Tokens that can be told apart in one picture."""


def collect_flow(models: ModelsLike, config: FlowConfig | None = None) -> Flows:
    """Collect the open attention edges of one model, or of a dense model and its twin, on each prompt.

    Args:
        models: One or two names, folders or loaded models, or what `load_models` gave.
        config: The prompts, and where to save the result.
    """
    config = config_of(FlowConfig, config)
    loaded = load_models(models)
    texts = _texts(config.prompt, _prompt_format(loaded.tokenizer))
    flows = Flows(
        [[_flow(loaded, i, prompt, text) for prompt, text in texts.items()] for i in range(len(loaded))]
    )
    flows.save_or_print(config.out, loaded.display)
    return flows


def _prompt_format(tokenizer: PreTrainedTokenizerBase) -> PromptFormat | None:
    """How prompts are written for the embedded model that has this tokenizer; None if they are plain text."""
    model = embedded_for(tokenizer)
    return None if model is None else model.prompt_format


def _texts(prompts: Sequence[str], prompt_format: PromptFormat | None) -> dict[str, str]:
    """The text that the models read for each prompt, by the prompt as it is shown."""
    if prompt_format is not None:
        return dict(map(prompt_format.write, prompts or prompt_format.defaults))
    if not prompts or not all(prompt.strip() for prompt in prompts):
        raise EdgewiseError("give a text as `prompt`")
    return {prompt: prompt for prompt in prompts}


def _flow(loaded: LoadedModels, index: int, prompt: str, text: str) -> Flow:
    """The flow of one model on one text."""
    model, name, tokenizer = loaded.models[index], loaded.names[index], loaded.tokenizer
    ids, tokens = encode_prompt(model, name, tokenizer, text, MAX_TOKENS)
    with torch.no_grad(), eval_mode(model), tap(model, read=["weights"]) as tapped:
        logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits
    weights = {layer: x[0].float().cpu() for layer, x in sorted(tapped.last["weights"].items())}
    prompt_format, last = _prompt_format(tokenizer), len(tokens) - 1
    answered = [
        i == last if prompt_format is None else prompt_format.is_answer(token)
        for i, token in enumerate(tokens)
    ]
    predicted = logits[0].argmax(-1).tolist()
    return Flow(
        model=name,
        kind=loaded.kinds[index],
        prompt=prompt,
        tokens=tokens,
        answers=[
            str(tokenizer.decode([id])) if shown else ""
            for id, shown in zip(predicted, answered, strict=True)
        ],
        layers=max(weights) + 1,
        heads=max(x.shape[0] for x in weights.values()),
        edges=[edge for layer, x in weights.items() for edge in _open_edges(layer, x)],
    )


def _open_edges(layer: int, weights: Tensor) -> Iterator[Edge]:  # [heads, t, t]
    values = weights.tolist()
    for head, query, key in weights.nonzero().tolist():
        yield Edge(layer, head, query, key, float(f"{values[head][query][key]:.4g}"))
