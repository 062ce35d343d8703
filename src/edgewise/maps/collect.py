"""Collect attention maps of one or two models on one prompt, of the heads in a task's circuit or of given ones."""

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.find import find_circuits
from edgewise.circuits.result import CircuitResult
from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import config_of
from edgewise.core.text import model_titles
from edgewise.gating.tap import tap
from edgewise.maps.config import MapsConfig
from edgewise.maps.head_types import answer_positions
from edgewise.maps.heads import HeadSelection, parse_heads, select_circuit_heads
from edgewise.maps.result import AttentionMaps, Panel
from edgewise.maps.statistics import head_statistics
from edgewise.measure.forward import eval_mode
from edgewise.models.loaded import LoadedModels, ModelsLike, load_models
from edgewise.tasks.generate import get_task
from edgewise.tasks.prompt import tokenize_prompt
from edgewise.tasks.tokenization import TokenizedText

MAX_TOKENS = 256
"""A longer map is unreadable."""


def collect_maps(
    models: ModelsLike, config: MapsConfig | None = None, *, circuit: CircuitResult | None = None
) -> AttentionMaps:
    """Collect the attention maps of one model, or of a dense model and its twin.

    Args:
        models: One or two names, folders or loaded models, or what `load_models` gave.
        config: Which task, prompt and heads.
        circuit: Take the task and its heads from here, instead of from `config.circuit` or a search.
    """
    config = config_of(MapsConfig, config)
    loaded = load_models(models)
    heads = None if config.heads is None else parse_heads(config.heads, loaded)
    prompt = None if config.prompt is None else _encode(loaded, config.prompt)  # refused before a long search
    circuit = circuit or _circuit(loaded, config, search=heads is None)
    prompt = prompt or _encode(loaded, _task_prompt(loaded, config, circuit))
    tokens = _token_texts(loaded.tokenizer, prompt)
    names: list[int] = []  # where the answer stands, if the prompt is the circuit's and asks for a name
    if circuit is not None and config.prompt is None:
        names = answer_positions(circuit.task, tokens, circuit.examples[0].get("answers", []))
    panels = [
        _panel(loaded, index, title, _select(loaded, index, heads, circuit), prompt, names)
        for index, title in enumerate(model_titles(loaded.names, loaded.kinds))
    ]
    if circuit is not None and heads is None:
        chosen_by = (circuit.task, circuit.metric, circuit.threshold, len(circuit.examples))
        maps = AttentionMaps(prompt.text, tokens, panels, *chosen_by)
    else:
        task = config.task if circuit is None else circuit.task
        maps = AttentionMaps(prompt.text, tokens, panels, task if config.prompt is None else None)
    maps.save_or_print(config.out, loaded.display)
    return maps


def _circuit(loaded: LoadedModels, config: MapsConfig, search: bool) -> CircuitResult | None:
    """The circuit in the folder `config.circuit`, or one that is searched for."""
    if config.circuit is not None:
        return CircuitResult.load(config.circuit)
    if not search:
        return None
    settings = CircuitConfig(
        task=config.task,
        out=config.out,
        prompts=config.prompts,
        threshold=config.threshold,
        edges=False,
        scrutiny=False,
        seed=config.seed,
    )
    return find_circuits(loaded, settings)


def _select(
    loaded: LoadedModels, index: int, heads: list[str] | None, circuit: CircuitResult | None
) -> HeadSelection:
    """The heads of one model to show."""
    if heads is not None or circuit is None:
        return HeadSelection(heads or [])
    return select_circuit_heads(circuit, loaded.names, index)


def _panel(
    loaded: LoadedModels,
    index: int,
    title: str,
    selection: HeadSelection,
    prompt: TokenizedText,
    names: list[int],
) -> Panel:
    """Run one model on the prompt; keep the maps of the selected heads, and statistics of all heads."""
    maps = _attention_maps(loaded.models[index], prompt.ids)
    n_tokens = len(prompt.ids)
    selected = np.zeros((len(selection.heads), n_tokens, n_tokens), dtype=np.float32)
    for i, head in enumerate(selection.heads):
        selected[i] = maps[head]
    return Panel(
        model=loaded.names[index],
        title=title,
        kind=loaded.kinds[index],
        heads=selection.heads,
        maps=selected,
        statistics={head: head_statistics(weights, prompt.ids, names) for head, weights in maps.items()},
        explained=selection.explained,
        note=selection.note,
    )


@torch.no_grad()
def _attention_maps(model: PreTrainedModel, ids: tuple[int, ...]) -> dict[str, np.ndarray]:  # head -> [t, t]
    with eval_mode(model), tap(model, read=["weights"]) as tapped:
        model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    maps = {
        f"L{layer}H{head}": weights.float().cpu().numpy()
        for layer, heads in sorted(tapped.last["weights"].items())
        for head, weights in enumerate(heads[0])
    }
    if not all(np.isfinite(weights).all() for weights in maps.values()):
        raise EdgewiseError("attention weights are not finite: the model holds NaN or infinity")
    return maps


# ------------------------------------------------------------------------------------------------------------- prompt


def _max_tokens(loaded: LoadedModels) -> int:
    return min(MAX_TOKENS, loaded.context or MAX_TOKENS)


def _task_prompt(loaded: LoadedModels, config: MapsConfig, circuit: CircuitResult | None) -> str:
    """The first clean prompt of the circuit, or of the task."""
    if circuit is not None:
        return circuit.examples[0]["clean"]
    task = get_task(config.task, loaded.tokenizer, 1, config.seed, _max_tokens(loaded))
    return task.pairs[0].clean


def _encode(loaded: LoadedModels, text: str) -> TokenizedText:
    tokens, max_tokens = tokenize_prompt(loaded.tokenizer, text), _max_tokens(loaded)
    if not 2 <= len(tokens.ids) <= max_tokens:
        raise EdgewiseError(f"the prompt has {len(tokens.ids)} tokens; a map can have 2 to {max_tokens}")
    return tokens


def _token_texts(tokenizer: PreTrainedTokenizerBase, tokens: TokenizedText) -> list[str]:
    """The text of each token; of a token that the tokenizer adds, such as BOS, its name."""
    return [
        tokens.text[start:end] or str(tokenizer.convert_ids_to_tokens(id))
        for id, (start, end) in zip(tokens.ids, tokens.spans, strict=True)
    ]
