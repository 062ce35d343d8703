"""Find a task's circuit in one model, or in a dense model and its sparse twin."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.edges import EdgeCircuit, find_edges
from edgewise.circuits.find_minimal import Interrupted
from edgewise.circuits.heads import effects_of_heads, find_heads
from edgewise.circuits.memory import copies_at_once, peak_memory
from edgewise.circuits.prompt_maps import (
    PromptMaps,
    example_numbers,
    prompt_tokens,
    read_maps,
    searched_pairs,
)
from edgewise.circuits.replay import Replay, record
from edgewise.circuits.result import CircuitResult, ModelCircuit
from edgewise.circuits.search import Search
from edgewise.circuits.streams import wiring_of
from edgewise.circuits.token_edges import find_token_edges
from edgewise.circuits.wiring import Wiring
from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError, UnsupportedArchitecture, first_line
from edgewise.core.ranges import config_of
from edgewise.gating.edge_gate import gate_config, gates_of
from edgewise.measure.forward import eval_mode
from edgewise.models.loaded import LoadedModels, ModelsLike, load_models
from edgewise.tasks import Task
from edgewise.tasks.generate import split_task
from edgewise.tasks.measure import check_fits
from edgewise.tasks.pairs import SEARCHED, Prompts
from edgewise.tasks.roles import roles_of

FLOOR = {"logit difference": 0.5, "probability difference": 0.05}
"""The least effect, clean minus corrupt metric, that counts as behaviour; less is noise."""
MIN_PROMPTS = 4
"""Prompts with an effect above the floor, without which no circuit is searched for."""


def find_circuits(
    models: ModelsLike, config: CircuitConfig | None = None, *, task: Task | None = None
) -> CircuitResult:
    """Find the heads, edges and token edges that carry a task's effect, in one model or in two.

    Args:
        models: A name, two names (see `edgewise.load`), or loaded models.
        config: Which task, how many prompts, what to search for; where to save.
        task: Prompts to use instead of those of `config.task`, made with the models' tokenizer.

    >>> edgewise.find_circuits(["pocket", "pocket-sparse"], edgewise.CircuitConfig(task="copy"))
    """
    config = config_of(CircuitConfig, config)
    models = load_models(models)
    if task is None:
        task = split_task(config.task, models.tokenizer, config.prompts, config.seed, models.context)
    if len(searched_pairs(task)) < MIN_PROMPTS:
        pairs = len(searched_pairs(task))
        raise EdgewiseError(
            f"{task.name} has {pairs} pair{'s' * (pairs != 1)} of prompts; a circuit needs at least {MIN_PROMPTS} pairs"
        )
    result = CircuitResult(
        task.name, task.metric, config.threshold, config.seed, config.method, _examples(task), []
    )
    for name, model in zip(models.names, models.models, strict=True):
        try:
            with eval_mode(model):
                result.models.append(find_circuit(model, task, config, name=name, display=models.display))
        except Interrupted as interrupt:
            result.models.append(interrupt.partial)
            if config.out is not None:
                result.save_or_print(config.out, models.display)
            raise Interrupted(result) from interrupt
        except BaseException:  # an interruption too: what was found in the first model is kept
            if result.models and config.out is not None:
                result.save_or_print(config.out, models.display)
            raise
    if config.out is not None:
        result.save_or_print(config.out, models.display)
        _save_maps(models, task, config.out)
    return result


def _save_maps(models: LoadedModels, task: Task, out: Path) -> None:
    maps = []
    for model in models.models:
        with eval_mode(model):
            maps.append(read_maps(model, task))
    PromptMaps(prompt_tokens(task, models.tokenizer), maps, example_numbers(task)).save(out)


def _examples(task: Task) -> list[dict[str, Any]]:
    return [
        {"clean": pair.clean, "corrupt": pair.corrupt, "answers": [*pair.answers], "wrong": [*pair.wrong]}
        for pair in searched_pairs(task)
    ]


def find_circuit(
    model: PreTrainedModel,
    task: Task,
    config: CircuitConfig,
    *,
    name: str = "model",
    display: Display | None = None,
) -> ModelCircuit:
    """Find one model's circuit. A model that does not show the behaviour gets a warning and no circuit.

    Interrupted, raises `Interrupted` with as much of the circuit as there is.
    """
    gates_of(model)  # refuses a model that was not loaded by edgewise
    display = display or Display(quiet=True)
    prompts = task.prompts(model.device)
    check_fits(model, prompts)
    searched = sum(len(numbers) for split, numbers in task.splits.items() if split in SEARCHED)
    with display.status(f"{name}: clean and corrupt prompts"):
        replay = record(model, Prompts(*(x[:searched] for x in prompts)), task.metric)
    has_effect = replay.effect >= FLOOR[task.metric]
    circuit = _scores_only(name, replay, left_out=int((~has_effect).sum()))
    if replay.effect.mean() < FLOOR[task.metric] or has_effect.sum() < MIN_PROMPTS:
        return replace(circuit, warnings=[_no_behaviour(name, task, replay, int(has_effect.sum()))])
    search = _search(name, replay, task, config, display)
    wiring, notice = _wiring(search) if config.edges else (None, [])
    circuit = replace(
        circuit,
        held_out=search.splits["test"].n if "test" in search.splits else 0,
        mib_config=None if wiring is None else _mib_config(replay, wiring),
    )
    display.print(f"{name}: {_plan(search, wiring)}")
    effects = effects_of_heads(search)
    means = {"lost": effects.lost.mean(0).tolist(), "restored": effects.restored.mean(0).tolist()}
    notice += [] if config.patch_heads else ["head effects are estimated by gradients (attribution patching)"]
    circuit = replace(circuit, warnings=notice + _warnings(search.replay), head_effects=means)
    try:
        circuit = replace(circuit, heads=find_heads(search, effects))
    except Interrupted as interrupt:
        raise Interrupted(_stopped(replace(circuit, heads=interrupt.partial))) from interrupt
    try:
        circuit = _with_edges(circuit, search, wiring)
        return replace(circuit, token_edges=find_token_edges(search))
    except (EdgewiseError, RuntimeError) as error:
        return _with_notice(circuit, search, "token edges", error)
    except Interrupted as interrupt:
        edges: EdgeCircuit = interrupt.partial
        raise Interrupted(_stopped(replace(circuit, **edges._asdict()))) from interrupt
    except KeyboardInterrupt as interrupt:
        raise Interrupted(_stopped(circuit)) from interrupt


def _search(name: str, replay: Replay, task: Task, config: CircuitConfig, display: Display) -> Search:
    """The prompts that show the behaviour, split; those that are not searched on are recorded for themselves."""
    has_effect, splits, roles = replay.effect >= FLOOR[task.metric], {}, {}
    all_roles = roles_of(task.pairs)
    for split, numbers in task.splits.items():
        if split not in SEARCHED:
            prompts = Prompts(*(x[list(numbers)] for x in task.prompts(replay.effect.device)))
            recorded = record(replay.model, prompts, task.metric)
            kept = (recorded.effect >= FLOOR[task.metric]).nonzero()[:, 0]
        else:
            recorded, kept = replay, has_effect[list(numbers)].nonzero()[:, 0] + numbers.start
        if len(kept):
            splits[split] = recorded.select(kept)
            of_split = kept.cpu() + (0 if split in SEARCHED else numbers.start)
            roles[split] = all_roles._replace(numbers=all_roles.numbers[of_split])
    if "fit" not in splits:
        splits["fit"], roles["fit"] = splits.pop("validation"), roles.pop("validation")
    return Search(name, replay.select(has_effect.nonzero()[:, 0]), splits, roles, config, display)


def _with_edges(circuit: ModelCircuit, search: Search, wiring: Wiring | None) -> ModelCircuit:
    """The circuit and that of edges; what was found before stays, with a notice, if edges fail."""
    if wiring is None or circuit.heads is None:
        return circuit
    try:
        return replace(circuit, **find_edges(search, wiring, circuit.heads)._asdict())
    except (EdgewiseError, RuntimeError) as error:
        return _with_notice(circuit, search, "edges", error)


def _mib_config(replay: Replay, wiring: Wiring) -> dict[str, Any]:
    layers = wiring.parts.layers
    sizes = {"n_layers": len(layers), "n_heads": layers[0].heads, "d_model": replay.clean.hidden[0].shape[2]}
    return {**sizes, "parallel_attn_mlp": wiring.parallel}


def _stopped(circuit: ModelCircuit) -> ModelCircuit:
    warning = f"{circuit.model}: the search was interrupted; this is what it had found"
    return replace(circuit, warnings=[*circuit.warnings, warning])


def _with_notice(circuit: ModelCircuit, search: Search, what: str, error: Exception) -> ModelCircuit:
    notice = f"no circuit of {what}: {first_line(error)}"
    search.display.print(f"{search.name}: {notice}")
    return replace(circuit, warnings=[*circuit.warnings, notice])


def _wiring(search: Search) -> tuple[Wiring | None, list[str]]:
    """The model's edges; none, and why, if its architecture does not allow to tell them apart: heads are searched alone."""
    try:
        return wiring_of(search.replay.select(slice(0, 1))), []
    except UnsupportedArchitecture as error:
        search.display.print(f"{search.name}: no circuit of edges: {error}")
        return None, [str(error)]


def _scores_only(name: str, replay: Replay, left_out: int) -> ModelCircuit:
    """How well the model does the task, without a circuit."""
    scores = replay.clean.scores
    return ModelCircuit(
        model=name,
        kind="dense" if gate_config(replay.model) is None else "sparse",
        accuracy=(scores > 0).float().mean().item(),
        clean_score=scores.mean().item(),
        corrupt_score=replay.corrupt.scores.mean().item(),
        prompts=replay.n,
        left_out=left_out,
    )


def _no_behaviour(name: str, task: Task, replay: Replay, with_effect: int) -> str:
    return (
        f"{name} does not show {task.name}: clean minus corrupt {task.metric} is {replay.effect.mean():.2g} on average, "
        f"above the floor of {FLOOR[task.metric]} on {with_effect} of {replay.n} prompts; no circuit was searched for"
    )


def _warnings(replay: Replay) -> list[str]:
    prompts, last = replay.prompts, replay.prompts.last[:, None]
    differ = int((prompts.clean.gather(1, last) != prompts.corrupt.gather(1, last)).sum())
    if not differ:
        return []
    return [
        f"in {differ} pairs the last token differs: its direct effect needs no head, so the curve of heads does not begin "
        "at 0"
    ]


def _plan(search: Search, wiring: Wiring | None) -> str:
    """What will be run, and the memory it takes."""
    replay, memory = search.replay, search.config.max_bytes
    heads = replay.clean.outputs[0].shape[1]
    layers, t = len(replay.clean.outputs), replay.prompts.clean.shape[1]
    copies = min(copies_at_once(replay, memory), heads * replay.n)
    return (
        f"{layers} layers x {heads} heads, {replay.n} pairs of up to {t} tokens, alike before token {replay.first + 1}; "
        f"{copies:,} patched prompts at once; memory about {peak_memory(replay, wiring, memory) / 2**30:.1f} GB in all"
    )
