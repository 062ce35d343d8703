"""Find a task's circuit in one model, or in a dense model and its sparse twin, with the same code."""

from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from edgewise.circuits import edges
from edgewise.circuits.config import CircuitConfig
from edgewise.circuits.curve import pooled_curve, ranks, trace
from edgewise.circuits.heads import Advance, head_curves, head_effects
from edgewise.circuits.memory import peak, prompts_at_once, rows_at_once, token_edges_at_once
from edgewise.circuits.prompt_maps import PromptMaps, prompt_tokens, read_maps
from edgewise.circuits.replay import Replay, record
from edgewise.circuits.result import CircuitResult, ComponentCircuit, ModelCircuit, TokenEdgeCounts
from edgewise.circuits.token_edges import token_edges
from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gate_config, gates_of
from edgewise.measure.evaluation import evaluating
from edgewise.models.loaded import ModelsLike, load_models
from edgewise.tasks import Task
from edgewise.tasks.measure import check_fits, get_task
from edgewise.tasks.pairs import Prompts

FLOOR = {"logit difference": 0.5, "probability difference": 0.05}
"""The least effect, clean minus corrupt, that is worth explaining: less is no behaviour but noise."""
FEWEST = 4
"""Prompts."""


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
        with evaluating(model):
            circuits.append(find_circuit(model, task, config, name, models.display))
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
    model: PreTrainedModel, task: Task, config: CircuitConfig, name: str, display: Display | None = None
) -> ModelCircuit:
    """One model's circuit. A model that does not show the behaviour gets a warning and no curve."""
    gates_of(model)  # refuses a model that was not loaded by edgewise
    say = display or Display(quiet=True)
    prompts = task.prompts(model.device)
    check_fits(model, prompts)
    with say.status(f"{name}: clean and corrupt prompts"):
        replay = record(model, prompts, task.metric)
    shown = replay.effect >= FLOOR[task.metric]
    scores = replay.clean.scores
    basic = ModelCircuit(
        model=name,
        kind="dense" if gate_config(model) is None else "sparse",
        accuracy=(scores > 0).float().mean().item(),
        clean_score=scores.mean().item(),
        corrupt_score=replay.corrupt.scores.mean().item(),
        prompts=replay.n,
        left_out=int((~shown).sum()),
    )
    if replay.effect.mean() < FLOOR[task.metric] or shown.sum() < FEWEST:
        warning = (
            f"{name} does not show {task.name}: clean minus corrupt is {replay.effect.mean():.2g} on average, above the "
            f"floor of {FLOOR[task.metric]} on {int(shown.sum())} of {replay.n} prompts; no circuit was looked for"
        )
        return replace(basic, warnings=[warning])
    replay = replay.of_prompts(shown.nonzero()[:, 0])
    warnings = []
    same_end = replay.prompts.clean.gather(1, replay.prompts.last[:, None]) == replay.prompts.corrupt.gather(
        1, replay.prompts.last[:, None]
    )
    if not same_end.all():
        warnings.append(
            f"in {int((~same_end).sum())} pairs the last token differs: that part of the effect needs no head, so the curve "
            "of heads does not begin at 0"
        )
    say.print(f"{name}: {plan(replay, config)}")
    found = replace(basic, warnings=warnings, **_heads(replay, config, name, say))
    if config.edges:
        found = replace(found, **_edges(replay, config, name, say))
    with say.bar(f"{name}: token edges", replay.n) as advance:
        return replace(found, token_edges=_token_edges(replay, config, advance))


def plan(replay: Replay, config: CircuitConfig) -> str:
    """What will be run, and what that takes."""
    heads = replay.clean.outputs[0].shape[1]
    layers, t = len(replay.clean.outputs), replay.prompts.clean.shape[1]
    rows = min(rows_at_once(replay, config.memory), heads * replay.n)
    wiring = edges.wiring_of(replay.model, replay.of_prompts(slice(0, 1)))[0] if config.edges else None
    return (
        f"{layers} layers x {heads} heads, {replay.n} pairs of up to {t} tokens, alike before token {replay.first + 1}; "
        f"{rows:,} patched prompts at once; memory about {peak(replay, wiring, config.memory) / 2**30:.1f} GB in all"
    )


def _heads(replay: Replay, config: CircuitConfig, name: str, say: Display) -> dict:
    heads = sum(outputs.shape[1] for outputs in replay.clean.outputs)
    with say.bar(f"{name}: patching {heads} heads", 2 * heads * replay.n) as advance:
        effects = head_effects(replay, config.memory, advance)
    with say.status(f"{name}: the best heads"):
        curves = head_curves(replay, effects.importance, config.threshold, config.memory)
    mean = effects.importance.mean(0)  # [layers, heads]
    layers, width = mean.shape
    ranking = [(f"L{i // width}H{i % width}", mean.flatten()[i].item()) for i in curves.order]
    found = ComponentCircuit(
        total=layers * width,
        needed=curves.at_threshold,
        faithfulness=curves.curve.explained[curves.curve.counts.index(curves.at_threshold)],
        needed_per_prompt=curves.at_threshold_per_prompt,
        curve=curves.curve,
        ranking=ranking,
    )
    both = {"lost": effects.lost.mean(0).tolist(), "restored": effects.restored.mean(0).tolist()}
    return {"heads": found, "head_effects": both}


def _token_edges(replay: Replay, config: CircuitConfig, advance: Advance) -> TokenEdgeCounts:
    parts = []
    for chunk in torch.arange(replay.n).split(token_edges_at_once(replay, config.memory)):
        prompts = Prompts(*(x[chunk] for x in replay.prompts))
        whole = record(replay.model, prompts, replay.metric, reuse_prefix=False)
        parts.append(token_edges(whole, config.threshold))
        advance(len(chunk))
    return TokenEdgeCounts(*([x for part in column for x in part] for column in zip(*parts, strict=True)))


RANKED = 2000
"""Edges of which the names are saved; the count and the curve are of all."""


def _edges(replay: Replay, config: CircuitConfig, name: str, say: Display) -> dict:
    wiring, *_ = edges.wiring_of(replay.model, replay.of_prompts(slice(0, 1)))
    exists = wiring.exists.flatten().to(replay.effect.device)
    chunks = torch.arange(replay.n).split(prompts_at_once(replay, wiring, config.memory))
    scores = []
    with say.bar(f"{name}: attributing {wiring.count:,} edges", replay.n) as advance:
        for chunk in chunks:
            part = replay.of_prompts(chunk)
            _, clean, corrupt = edges.wiring_of(replay.model, part)
            scores.append(edges.edge_scores(part, wiring, clean, corrupt, config.ig_steps))
            advance(len(chunk))
    scores = torch.cat(scores)  # [n, sources, targets]
    flat = scores.flatten(1)[:, exists]  # [n, edges]

    def keeping(places: Tensor, counts: Tensor) -> Tensor:  # int64 [n, edges], [p, n] -> [p, n]
        found = []
        for chunk in chunks:
            part = replay.of_prompts(chunk)
            _, _, corrupt = edges.wiring_of(replay.model, part)
            keep = torch.zeros(len(chunk), len(exists), dtype=torch.bool, device=places.device)
            of_chunk = []
            for count in counts[:, chunk].to(places.device):
                keep[:, exists] = places[chunk] < count[:, None]
                of_chunk.append(
                    edges.scores_keeping(part, wiring, corrupt, keep.unflatten(1, wiring.exists.shape))
                )
            found.append(torch.stack(of_chunk))
        return torch.cat(found, 1)

    pooled = flat.mean(0)
    places = ranks(pooled.abs())
    with say.status(f"{name}: the best edges"):
        curve, count = pooled_curve(
            replay,
            lambda counts: keeping(places.expand(replay.n, -1), counts),
            wiring.count,
            config.threshold,
        )
        _check_all_kept(name, curve.explained[-1])
        own = ranks(flat.abs())
        _, _, per_prompt = trace(
            lambda counts: replay.share(keeping(own, counts)).cpu(), wiring.count, replay.n, config.threshold
        )
    kept = torch.zeros_like(exists)
    kept[exists] = places < count
    pairs, all_pairs = wiring.head_pairs
    joined = pairs[kept.unflatten(0, wiring.exists.shape).cpu()]
    numbers = exists.nonzero()[:, 0]
    ranking = [
        (_edge_name(wiring, int(numbers[i])), pooled[i].item())
        for i in pooled.abs().argsort(descending=True, stable=True)[:RANKED].tolist()
    ]
    found = ComponentCircuit(
        total=wiring.count,
        needed=count,
        faithfulness=curve.explained[curve.counts.index(count)],
        needed_per_prompt=per_prompt.tolist(),
        curve=curve,
        ranking=ranking,
    )
    return {
        "edges": found,
        "kv_heads": [layer.kv_heads for layer in wiring.parts.layers],
        "head_head_edges": (len(joined[joined >= 0].unique()), all_pairs),
    }


def _edge_name(wiring: edges.Wiring, number: int) -> str:
    return (
        f"{wiring.sources[number // len(wiring.targets)]} -> {wiring.targets[number % len(wiring.targets)]}"
    )


def _check_all_kept(name: str, explained: float) -> None:
    """With all edges kept the clean run must come out: whatever an architecture does that the adapter does not know shows
    here."""
    if not abs(explained - 1) < 1e-3:
        raise EdgewiseError(
            f"{name}: keeping all edges explains {explained:.4f} of the effect instead of 1, so this architecture's edges "
            "are not what edgewise takes them for; circuits of heads work (--no-edges)"
        )
