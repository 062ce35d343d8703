"""Find a task's circuit in one model, or in a dense model and its sparse twin."""

from dataclasses import replace

from transformers import PreTrainedModel

from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.edges import find_edges
from edgewise.circuits.heads import find_heads
from edgewise.circuits.memory import copies_at_once, peak_memory
from edgewise.circuits.prompt_maps import PromptMaps, prompt_tokens, read_maps
from edgewise.circuits.replay import Replay, record
from edgewise.circuits.result import CircuitResult, ModelCircuit
from edgewise.circuits.search import Search
from edgewise.circuits.streams import wiring_of
from edgewise.circuits.token_edges import find_token_edges
from edgewise.circuits.wiring import Wiring
from edgewise.core.console import Display
from edgewise.gating.edge_gate import gate_config, gates_of
from edgewise.measure.forward import eval_mode
from edgewise.models.loaded import ModelsLike, load_models
from edgewise.tasks import Task
from edgewise.tasks.generate import get_task
from edgewise.tasks.measure import check_fits

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
    config = config or CircuitConfig()
    models = load_models(models)
    if task is None:
        task = get_task(config.task, models.tokenizer, config.prompts, config.seed, models.context)
    circuits, maps = [], []
    for name, model in zip(models.names, models.models, strict=True):
        with eval_mode(model):
            circuits.append(find_circuit(model, task, config, name=name, display=models.display))
            if config.out is not None:
                maps.append(read_maps(model, task))
    examples = [
        {"clean": pair.clean, "corrupt": pair.corrupt, "answers": [*pair.answers], "wrong": [*pair.wrong]}
        for pair in task.pairs
    ]
    result = CircuitResult(
        task.name, task.metric, config.threshold, config.seed, config.method, examples, circuits
    )
    if config.out is not None:
        result.save(config.out)
        PromptMaps(prompt_tokens(task, models.tokenizer), maps).save(config.out)
    return result


def find_circuit(
    model: PreTrainedModel,
    task: Task,
    config: CircuitConfig,
    *,
    name: str = "model",
    display: Display | None = None,
) -> ModelCircuit:
    """Find one model's circuit. A model that does not show the behaviour gets a warning and no circuit."""
    gates_of(model)  # refuses a model that was not loaded by edgewise
    display = display or Display(quiet=True)
    prompts = task.prompts(model.device)
    check_fits(model, prompts)
    with display.status(f"{name}: clean and corrupt prompts"):
        replay = record(model, prompts, task.metric)
    has_effect = replay.effect >= FLOOR[task.metric]
    circuit = _scores_only(name, replay, left_out=int((~has_effect).sum()))
    if replay.effect.mean() < FLOOR[task.metric] or has_effect.sum() < MIN_PROMPTS:
        return replace(circuit, warnings=[_no_behaviour(name, task, replay, int(has_effect.sum()))])
    search = Search(name, replay.select(has_effect.nonzero()[:, 0]), config, display)
    wiring = wiring_of(search.replay.select(slice(0, 1))) if config.edges else None
    display.print(f"{name}: {_plan(search, wiring)}")
    heads, effects = find_heads(search)
    means = {"lost": effects.lost.mean(0).tolist(), "restored": effects.restored.mean(0).tolist()}
    circuit = replace(circuit, warnings=_warnings(search.replay), heads=heads, head_effects=means)
    if wiring is not None:
        edges, kv_heads, head_head_edges = find_edges(search, wiring)
        circuit = replace(circuit, edges=edges, kv_heads=kv_heads, head_head_edges=head_head_edges)
    return replace(circuit, token_edges=find_token_edges(search))


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
