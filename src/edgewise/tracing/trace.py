"""`trace`: explain one prediction, from the attribution graph of features down to the heads that carry each link."""

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.devices import computing_on, only_device
from edgewise.core.errors import EdgewiseError
from edgewise.core.ranges import config_of
from edgewise.measure.forward import eval_mode
from edgewise.models.linearise import linearise
from edgewise.models.linearised_pass import LinearisedPass
from edgewise.models.loaded import LoadedModels, ModelsLike, load_models
from edgewise.models.registry import embedded
from edgewise.tasks.prompt import EncodedPrompt, encode_prompt
from edgewise.tracing.clusters import attribute_to_tokens, cluster_strengths, make_clusters
from edgewise.tracing.config import TraceConfig
from edgewise.tracing.contexts import feature_contexts
from edgewise.tracing.graph import Graph, build_graph
from edgewise.tracing.head_shares import HeadShares, head_shares
from edgewise.tracing.influence import PrunedGraph, prune
from edgewise.tracing.memory import MemoryPlan, plan_graph, plan_shares
from edgewise.tracing.nodes import graph_metrics, make_links, make_nodes
from edgewise.tracing.paths import strongest_link_paths
from edgewise.tracing.qk_attribution import qk_attributions
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Node, QKAttribution
from edgewise.tracing.target_logits import TargetLogits, most_likely_tokens, target_logits, token_of_text
from edgewise.tracing.traces import Traces
from edgewise.tracing.validation import (
    ablation_names,
    components,
    correlations,
    effect_closure,
    validate,
)
from edgewise.training.transcoder.store import load_transcoder
from edgewise.training.transcoder.transcoder import Transcoder

_MAX_TOKENS = 256  # attention edges of all heads are kept

TranscoderLike = str | Path | Transcoder
"""A folder, or a loaded transcoder."""


def trace(
    models: ModelsLike,
    config: TraceConfig | None = None,
    *,
    transcoders: TranscoderLike | Sequence[TranscoderLike] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    display: Display | None = None,
    memory_limit: int | None = None,
) -> Traces:
    """Explain one prediction through a transcoder's features, in one model or in a dense model and its sparse twin.

    >>> traces = edgewise.trace(["pocket", "pocket-sparse"], edgewise.TraceConfig(prompt='The opposite of " large " is "'))
    >>> traces.plot()                             # the attribution diagram
    >>> traces[-1].heads_at(0.8)                  # the fewest heads that carry 80 % of the attention flow into the logits
    >>> traces[-1].heads_at(0.8, key=4, query=7)  # of the flow from "large" to the last token

    Args:
        models: One or two names, folders or loaded models, the dense one first.
        config: The prompt, and what is kept of the graph.
        transcoders: One for each model, folders or loaded; models that are embedded in a package bring theirs.
        tokenizer: Required with loaded models.
        display: Where progress is shown; nowhere if not given.
        memory_limit: Bytes that a step may take; what is free if not given.
    """
    config = config_of(TraceConfig, config)
    loaded = load_models(models, tokenizer=tokenizer, display=display)
    subjects = subjects_of(loaded, transcoders)
    return Traces(tuple(_trace_model(subject, config, loaded.display, memory_limit) for subject in subjects))


# ---------------------------------------------------------------------------------------------------------------- one model


class Subject(NamedTuple):
    """A model with its transcoder."""

    name: str
    kind: str
    model: PreTrainedModel
    transcoder: Transcoder
    tokenizer: PreTrainedTokenizerBase


def _trace_model(subject: Subject, config: TraceConfig, display: Display, memory_limit: int | None) -> Trace:
    """The algorithm, from top to bottom."""
    name, _, model, transcoder, tokenizer = subject
    started = time.monotonic()

    def check_memory(plan: MemoryPlan) -> None:
        display.print(f"{name}: {plan}")
        plan.check_fits(memory_limit)

    prompt = encode_prompt(model, name, tokenizer, config.prompt, _MAX_TOKENS)
    _check_key(config, len(prompt.ids))
    with torch.no_grad(), eval_mode(model), computing_on(model.device):
        linear = linearise(model, torch.tensor(prompt.ids))
        logits = _target_logits(subject, linear, config.logit)
        check_memory(plan_graph(linear, transcoder, logits))
        with display.status("building the graph"):
            graph = build_graph(linear, transcoder, logits)
            pruned = prune(graph, config.node_threshold, config.edge_threshold)
        check_memory(plan_shares(graph, pruned))
        with display.bar("splitting links over heads", len(pruned.links)) as progress:
            shares = head_shares(graph, pruned, progress)
        with display.status("explaining features"):
            explained = _explain(subject, prompt, graph, pruned, shares, config)
        ablations = components(graph, pruned, _heads_by_flow(shares), config.ablations)
        with display.bar("validating by intervention", len(ablations)) as progress:
            tested = validate(model, graph, ablations, ablation_names(graph, ablations), progress)
    metrics = explained.metrics | correlations(tested) | {"effect_closure": effect_closure(tested)}
    metrics["seconds"] = time.monotonic() - started
    return replace(explained, interventions=tested, metrics=metrics)


def _heads_by_flow(shares: HeadShares) -> list[tuple[int, int]]:
    """All heads, those that carry most first."""
    flow = shares.cells.cpu().numpy().sum((-2, -1), dtype=np.float64)
    order = np.argsort(-flow, axis=None, kind="stable").tolist()
    return [(number // flow.shape[1], number % flow.shape[1]) for number in order]


def _explain(
    subject: Subject,
    prompt: EncodedPrompt,
    graph: Graph,
    pruned: PrunedGraph,
    shares: HeadShares,
    config: TraceConfig,
) -> Trace:
    """Interpret the pruned graph: clusters, paths, QK attribution, contexts."""
    name, kind, model, transcoder, tokenizer = subject
    feature_attribution, logit_attribution = attribute_to_tokens(graph)
    nodes = make_nodes(graph, pruned, feature_attribution, prompt.tokens, tokenizer)
    links = make_links(graph, pruned, shares, nodes)
    ids = [node.id for node in nodes]
    clusters = make_clusters(graph, pruned, feature_attribution, prompt.tokens, ids)
    attributions, warnings = _qk_attributions(subject, graph, pruned, shares, nodes)
    return Trace(
        model=name,
        kind=kind,
        transcoder=transcoder.config.model,
        prompt=config.prompt,
        tokens=prompt.tokens,
        ids=prompt.ids,
        logits=[(node.label, node.value or 0.0) for node in nodes if node.kind == "logit"],
        nodes=nodes,
        links=links,
        clusters=clusters,
        strengths=cluster_strengths(clusters, links, [node.id for node in nodes if node.kind == "logit"]),
        origins=(graph.logits.weights @ logit_attribution).tolist(),
        paths=strongest_link_paths(graph, pruned, links, nodes),
        qk_attributions=attributions,
        interventions=[],
        contexts=feature_contexts(model, name, transcoder, nodes, tokenizer, config.data),
        metrics=graph_metrics(graph, pruned, shares, config),
        head_shares=shares.heads.cpu().numpy(),
        cells=shares.cells.cpu().numpy(),
        maps=torch.stack([layer.weights for layer in graph.linear.layers]).cpu().numpy(),
        warnings=warnings,
    )


def _qk_attributions(
    subject: Subject, graph: Graph, pruned: PrunedGraph, shares: HeadShares, nodes: list[Node]
) -> tuple[list[QKAttribution], list[str]]:
    """QK attributions, or a warning if the model's queries and keys do not allow them."""
    try:
        return qk_attributions(subject.model, graph, pruned, shares.cells, nodes), []
    except EdgewiseError as error:
        return [], [str(error)]


def _target_logits(subject: Subject, linear: LinearisedPass, logit: str | None) -> TargetLogits:
    if logit is None:
        tokens = most_likely_tokens(linear.logits)
    else:
        tokens = token_of_text(subject.tokenizer, logit, len(linear.logits), subject.name)
    return target_logits(subject.model, linear.logits, tokens, linear.logit_scale)


def _check_key(config: TraceConfig, length: int) -> None:
    if config.key is not None and config.key >= max(length, 2):
        raise EdgewiseError(
            f"`key` {config.key} is not before the last token, which is number {length}; give 1 to {length - 1}"
        )


# ------------------------------------------------------------------------------------------------------ models, transcoders


def subjects_of(
    loaded: LoadedModels, transcoders: TranscoderLike | Sequence[TranscoderLike] | None
) -> list[Subject]:
    """Each model in float32 on its device, with its transcoder.

    A trace adds up to the model's values within 1e-3, which half precision would round away.
    """
    given = [transcoders] if isinstance(transcoders, TranscoderLike) else transcoders
    if given is not None and len(given) != len(loaded):
        raise EdgewiseError(f"`transcoders` must be as many as the models, {len(loaded)}, not {len(given)}")
    subjects = []
    for number, (name, kind, model) in enumerate(zip(loaded.names, loaded.kinds, loaded.models, strict=True)):
        device = only_device(model, "a trace")
        if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
            model = copy.deepcopy(model).float()  # a given model stays as it is
        transcoder = _embedded_transcoder(name) if given is None else given[number]
        if not isinstance(transcoder, Transcoder):
            transcoder = load_transcoder(transcoder, model)
        elif (transcoder.encoder.device, transcoder.encoder.dtype) != (device, torch.float32):
            transcoder = copy.deepcopy(transcoder).to(device, torch.float32)
        subjects.append(Subject(name, kind, model, transcoder, loaded.tokenizer))
    return subjects


def _embedded_transcoder(name: str) -> Path:
    model = embedded(name)
    folder = None if model is None else model.transcoder
    if folder is None:
        raise EdgewiseError(
            f"give the transcoder of {name} in `transcoders`; `edgewise transcoder {name} --out DIR` trains one"
        )
    return folder
