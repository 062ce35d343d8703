"""Attention maps of one or two models: the heads that a task needs, or those asked for, on one prompt."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.find import find_circuits
from edgewise.circuits.result import CircuitResult
from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.core.text import model_titles
from edgewise.gating.edge_gate import gate_config
from edgewise.gating.tap import tap
from edgewise.maps.result import AttentionMaps, Panel
from edgewise.maps.statistics import measure_head
from edgewise.measure.evaluation import evaluating
from edgewise.models.checkpoint import load, name_of, shared_tokenizer
from edgewise.models.loaded import LoadedModels
from edgewise.tasks.align import Tokens
from edgewise.tasks.measure import get_task
from edgewise.tasks.prompt import tokens_of

LONGEST = 256
"""Tokens: a longer map cannot be read."""


def collect_maps(
    models: Sequence[str | PreTrainedModel],
    task: str = "copy",
    *,
    prompt: str | None = None,
    heads: str | Sequence[str] | None = None,
    circuit: CircuitResult | str | Path | None = None,
    threshold: float = 0.9,
    prompts: int = 32,
    seed: int = 0,
    out: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    display: Display | None = None,
) -> AttentionMaps:
    """The maps of one model, or of a dense model and its twin.

    Args:
        models: Names (see `edgewise.load`) or loaded models; with loaded models, bring their `tokenizer`.
        task: Decides the prompt, unless one is given, and the heads: those that explain enough of its effect.
        prompt: Show this text instead of the task's first clean prompt.
        heads: Show these instead: "L5H1,L0H0" or a list, or "all".
        circuit: Take the heads from a circuit.json (its folder) instead of searching; it also decides the task.
        threshold: Share of the effect that the heads must explain.
        prompts: Pairs of prompts by which heads are chosen.
        seed: Seed of the prompts.
        out: Folder for the circuit.json of a search.
    """
    if not 1 <= len(models) <= 2:
        raise EdgewiseError(f"maps are drawn of one model or of two, not of {len(models)}")
    names = [name_of(model, place) for place, model in enumerate(models)]
    tokenizer = tokenizer or shared_tokenizer(models)
    loaded = [load(model) if isinstance(model, str) else model for model in models]
    longest = min([LONGEST, *filter(None, map(_context, loaded))])
    asked = None if heads is None else _asked(heads, loaded)
    read = None if prompt is None else _read(tokenizer, prompt, longest)
    found = CircuitResult.load(circuit) if isinstance(circuit, str | Path) else circuit
    if found is None and asked is None:
        folder = None if out is None else Path(out)
        config = CircuitConfig(task, folder, prompts, threshold, edges=False, seed=seed)
        quiet = Display(quiet=True)
        found = find_circuits(LoadedModels(tuple(names), tuple(loaded), tokenizer, display or quiet), config)
    task = found.task if found else task
    if read is None:
        clean = (
            found.examples[0]["clean"]
            if found
            else get_task(task, tokenizer, 1, seed, longest).pairs[0].clean
        )
        read = _read(tokenizer, clean, longest)
    kinds = ["dense" if gate_config(model) is None else "sparse" for model in loaded]
    panels = []
    for place, title in enumerate(model_titles(names, kinds)):
        choice = _Choice(asked or []) if found is None or asked else _of_circuit(found, names, place)
        maps = _maps(loaded[place], read.ids)
        measured = {head: measure_head(weights, read.ids) for head, weights in maps.items()}
        shown = np.zeros((len(choice.heads), len(read.ids), len(read.ids)), dtype=np.float32)
        for i, head in enumerate(choice.heads):
            shown[i] = maps[head]
        panels.append(
            Panel(
                names[place],
                title,
                kinds[place],
                choice.heads,
                shown,
                measured,
                choice.explained,
                choice.note,
            )
        )
    tokens = [
        read.text[a:b] or str(tokenizer.convert_ids_to_tokens(id))  # one that the tokenizer adds has no text
        for id, (a, b) in zip(read.ids, read.spans, strict=True)
    ]
    if found is None or asked:
        return AttentionMaps(read.text, tokens, panels, task if prompt is None else None)
    how = (found.metric, found.threshold, len(found.examples))
    return AttentionMaps(read.text, tokens, panels, task, *how)


class _Choice(NamedTuple):
    heads: list[str]
    explained: float | None = None
    note: str = ""


def _of_circuit(found: CircuitResult, names: list[str], place: int) -> _Choice:
    """The heads of a model's circuit."""
    name, of = names[place], {model.model: model for model in found.models}
    if name not in of:
        raise EdgewiseError(
            f"the circuit is of {' and '.join(of)}, not of {name}; search again without --circuit"
        )
    same = [model.model for model in found.models] == names  # two loaded models may have one name
    heads = (found.models[place] if same else of[name]).heads
    if heads is None:
        return _Choice(
            [], None, f"{name} does not show {found.task}, so it has no circuit and no heads to show"
        )
    return _Choice([head for head, _ in heads.ranking[: heads.needed]], heads.faithfulness)


def _context(model: PreTrainedModel) -> int | None:
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def _asked(heads: str | Sequence[str], models: Sequence[PreTrainedModel]) -> list[str]:
    """Heads by name, each once, in the order given."""
    configs = [model.config.get_text_config() for model in models]
    layers = min(config.num_hidden_layers for config in configs)
    width = min(config.num_attention_heads for config in configs)
    if heads == "all":
        return [f"L{layer}H{head}" for layer in range(layers) for head in range(width)]
    given = heads.replace(",", " ").split() if isinstance(heads, str) else list(heads)
    named = {}
    for name in given:
        found = re.fullmatch(r"L(\d+)H(\d+)", name.upper())
        if not found:
            raise EdgewiseError(f"{name!r} names no head; give heads as L5H1,L0H0, or all")
        layer, head = map(int, found.groups())
        if layer >= layers or head >= width:
            raise EdgewiseError(f"there is no head {name}: heads go from L0H0 to L{layers - 1}H{width - 1}")
        named[f"L{layer}H{head}"] = None
    if not named:
        raise EdgewiseError("name at least one head: L5H1,L0H0, or all")
    return list(named)


def _read(tokenizer: PreTrainedTokenizerBase, prompt: str, longest: int) -> Tokens:
    read = tokens_of(tokenizer, prompt)
    if not 2 <= len(read.ids) <= longest:
        raise EdgewiseError(f"the prompt has {len(read.ids)} tokens; a map can have 2 to {longest}")
    return read


@torch.no_grad()
def _maps(model: PreTrainedModel, ids: Sequence[int]) -> dict[str, np.ndarray]:  # -> [t, t] of each head
    with evaluating(model), tap(model, read=["weights"]) as seen:
        model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    maps = {
        f"L{layer}H{head}": weights.float().cpu().numpy()
        for layer, heads in sorted(seen.last["weights"].items())
        for head, weights in enumerate(heads[0])
    }
    if not all(np.isfinite(weights).all() for weights in maps.values()):
        raise EdgewiseError("attention weights are not numbers: the model holds NaN or infinity")
    return maps
