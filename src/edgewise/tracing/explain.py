"""`trace`: one prediction, from the graph of features down to the heads that carry it."""

import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.gating.edge_gate import gate_config
from edgewise.measure.evaluation import evaluating
from edgewise.models.checkpoint import load, load_tokenizer, name_of
from edgewise.tasks.prompt import read_prompt
from edgewise.tracing.clusters import cluster, origins, strengths
from edgewise.tracing.config import TraceConfig
from edgewise.tracing.graph import Graph, Readout, build_graph
from edgewise.tracing.head_shares import HeadShares, head_shares
from edgewise.tracing.influence import Pruned, prune
from edgewise.tracing.intervene import take_away
from edgewise.tracing.linearised import Frozen, freeze
from edgewise.tracing.memory import plan_graph, plan_shares
from edgewise.tracing.paths import link_paths, strongest
from edgewise.tracing.qk_attribution import looks
from edgewise.tracing.result import HeadLook, Intervention, Link, LinkPaths, Node, Trace
from edgewise.training.transcoder.features import contexts_for, feature_text, promoted_tokens
from edgewise.training.transcoder.store import load_transcoder
from edgewise.training.transcoder.transcoder import Transcoder

_MOST_LOGITS, _LOGIT_SHARE = 10, 0.95
_MOST_LOOKS, _MOST_PAIRS, _MOST_PATHS = 12, 8, 20
_TAKEN = 30  # features, and as many heads, that are taken away to see
_CONTEXTS, _CONTEXT_TOKENS = 4, 32_768
_LONGEST = 256  # tokens: attention edges of all heads are kept


def trace(
    model: str | Path | PreTrainedModel,
    transcoder: str | Path | Transcoder | None = None,
    config: TraceConfig | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    display: Display | None = None,
) -> Trace:
    """Explain one prediction of a model through its transcoder's features, down to the heads that carry each link.

    >>> found = edgewise.trace("pocket-sparse", config=edgewise.TraceConfig(prompt='The opposite of " large " is "'))
    >>> found.heads_at(0.8)                  # the fewest heads that carry 80 % of what attention brings to the logit
    >>> found.heads_at(0.8, key=4, query=7)  # of what they bring from "large" to the last token
    """
    config = config or TraceConfig()
    began = time.monotonic()
    name = name_of(model, 0) if isinstance(model, PreTrainedModel) else str(model)
    loaded = model if isinstance(model, PreTrainedModel) else load(model)
    if loaded.dtype != torch.float32 or loaded.device.type != "cpu":
        loaded = copy.deepcopy(loaded).float().cpu()  # a given model stays as it is
    tokenizer = tokenizer or load_tokenizer(name)
    if not isinstance(transcoder, Transcoder):
        transcoder = load_transcoder(transcoder or _shipped(name), loaded)
    read = read_prompt(loaded, name, tokenizer, config.prompt, _LONGEST)
    with torch.no_grad(), evaluating(loaded):
        frozen = freeze(loaded, torch.tensor(read.ids))
        readout = _readout(loaded, frozen, tokenizer, config.logit, name)
        display = display or Display(quiet=True)
        plan = plan_graph(frozen, transcoder, readout)
        display.print(f"{name}: {plan}")
        plan.check_fits()
        with display.status("building the graph"):
            graph = build_graph(frozen, transcoder, readout)
            pruned = prune(graph, config.nodes, config.edges)
        plan = plan_shares(graph, pruned)
        display.print(f"{name}: {plan}")
        plan.check_fits()
        with display.bar("splitting links over heads", len(pruned.links)) as each:
            shares = head_shares(graph, pruned, each)
        with display.status("what features mean, and what happens without them"):
            found = _collect(loaded, name, graph, pruned, shares, read.tokens, tokenizer, config)
    return replace(found, figures=found.figures | {"seconds": time.monotonic() - began})


def _shipped(name: str) -> Path:
    from edgewise import pocket

    folder = pocket.folder(name) / "transcoder" if name in pocket.NAMES else None
    if folder is None or not folder.is_dir():
        raise EdgewiseError(
            f"give the transcoder of {name}: --transcoder DIR; `edgewise transcoder {name} --out DIR` trains one"
        )
    return folder


def _readout(model: Any, frozen: Frozen, tokenizer: Any, logit: str | None, name: str) -> Readout:
    unembed = model.get_output_embeddings()
    weight, bias = unembed.weight.detach(), getattr(unembed, "bias", None)
    probability = frozen.logits.softmax(-1)
    if logit is not None:
        tokens = torch.tensor([_token(tokenizer, logit, len(weight), name)])
    else:
        ordered = probability.sort(descending=True)
        count = int((ordered.values.cumsum(0) < _LOGIT_SHARE).sum()) + 1
        tokens = ordered.indices[: min(count, _MOST_LOGITS)]
    zero = torch.zeros(len(weight)) if bias is None else bias.detach()
    return Readout(
        tokens,
        probability[tokens],
        weight[tokens] - weight.mean(0),
        zero[tokens] - zero.mean(),
        frozen.logits[tokens] - frozen.logits.mean(),
    )


def _token(tokenizer: Any, text: str, vocabulary: int, name: str) -> int:
    """The one token that a text is, as it stands or after a space."""
    unknown = tokenizer.unk_token_id
    for candidate in (text, f" {text}"):
        try:
            ids = tokenizer(candidate, add_special_tokens=False)["input_ids"]
        except Exception:  # a tokenizer without a word for "unknown" refuses in its own way
            continue
        if len(ids) == 1 and ids[0] != unknown and ids[0] < vocabulary:
            return ids[0]
    raise EdgewiseError(f"--logit {text!r} is not one token of {name}'s vocabulary")


# ----------------------------------------------------------------------------------------------------- from tensors to data


def _collect(
    model: PreTrainedModel,
    name: str,
    graph: Graph,
    pruned: Pruned,
    shares: HeadShares,
    words: list[str],
    tokenizer: Any,
    config: TraceConfig,
) -> Trace:
    nodes = _nodes(graph, pruned, words, tokenizer)
    by_source = {int(s): node for s, node in zip(pruned.sources, nodes, strict=False)}
    features = len(graph.features)
    ids = [node.id for node in nodes]
    logits = ids[len(pruned.sources) :]
    names = {int(t): by_source[int(t) + graph.frozen.length].id for t in pruned.targets if t < features}
    names |= {features + i: each for i, each in enumerate(logits)}
    links = []
    for row, (t, s) in enumerate(pruned.links.tolist()):
        target, source = int(pruned.targets[t]), int(pruned.sources[s])
        links.append(
            Link(
                by_source[source].id,
                names[target],
                graph.edges[target, source].item(),
                pruned.flow[row].item(),
                shares.straight[row].item(),
            )
        )
    clusters = cluster(graph, pruned, words, ids)
    _, from_tokens = origins(graph)
    maps = torch.stack([layer.weights for layer in graph.frozen.layers])
    found = Trace(
        model=name,
        kind="dense" if gate_config(model) is None else "sparse",
        transcoder=graph.transcoder.config.model,
        prompt=config.prompt,
        tokens=words,
        ids=graph.frozen.ids.tolist(),
        logits=[
            (tokenizer.decode([i]), p)
            for i, p in zip(graph.readout.tokens.tolist(), graph.readout.probability.tolist(), strict=True)
        ],
        nodes=nodes,
        links=links,
        clusters=clusters,
        strengths=strengths(clusters, [(x.source, x.target, x.flow) for x in links], logits),
        origins=(graph.readout.weights @ from_tokens).tolist(),
        paths=_paths(graph, pruned, links, nodes, shares.heads.shape[2]),
        looks=[],
        interventions=[],
        contexts=_contexts(model, name, graph.transcoder, nodes, tokenizer, config),
        figures=_figures(graph, pruned, shares, config),
        head_shares=shares.heads.numpy(),
        cells=shares.cells.numpy(),
        maps=maps.numpy(),
    )
    explained, warnings = _explain_looks(found, model, graph, pruned, ids)
    interventions, correlations = _take_away(found, model, graph, pruned, by_source)
    return replace(
        found,
        looks=explained,
        interventions=interventions,
        figures=found.figures | correlations,
        warnings=warnings,
    )


def _nodes(graph: Graph, pruned: Pruned, words: list[str], tokenizer: Any) -> list[Node]:
    """Of the kept sources, in their order, then of the logits."""
    length, features, layers = graph.frozen.length, graph.features, len(graph.frozen.layers)
    from_token, _ = origins(graph)
    nodes = []
    for source in pruned.sources.tolist():
        influence = pruned.influence[source].item()
        feature = source - length
        if feature < 0:
            token = int(graph.frozen.ids[source])
            nodes.append(Node(f"E_{token}_{source}", "token", -1, token, source, words[source], influence))
        elif feature < len(features):
            layer, number, position = (
                int(x[feature]) for x in (features.layer, features.number, features.position)
            )
            origin = int(from_token[feature].argmax())
            label = f"{words[position]}: L{layer} F{number}"
            value = features.activation[feature].item()
            nodes.append(
                Node(
                    f"{layer}_{number}_{position}",
                    "feature",
                    layer,
                    number,
                    position,
                    label,
                    influence,
                    value,
                    origin,
                )
            )
        else:
            layer, position = divmod(feature - len(features), length)
            label = f"{words[position]}: not explained of MLP {layer}"
            nodes.append(Node(f"error_{layer}_{position}", "error", layer, -1, position, label, influence))
    readout = graph.readout
    for token, p, weight in zip(readout.tokens.tolist(), readout.probability, readout.weights, strict=True):
        text = tokenizer.decode([token])
        node_id = f"{layers + 1}_{token}_{length - 1}"
        nodes.append(Node(node_id, "logit", layers, token, length - 1, text, weight.item(), p.item()))
    return nodes


def _figures(graph: Graph, pruned: Pruned, shares: HeadShares, config: TraceConfig) -> dict[str, Any]:
    count, length = len(graph.features), graph.frozen.length
    edges = int((graph.edges != 0).sum())
    errors = pruned.influence[length + count :].sum().item()
    weights = shares.heads.sum((1, 2)) + shares.straight
    t, s = pruned.targets[pruned.links[:, 0]], pruned.sources[pruned.links[:, 1]]
    off = (
        (weights - graph.edges[t, s]).abs().max() / graph.edges[t, s].abs().max()
        if len(t)
        else torch.zeros(())
    )
    return {
        "closure": graph.closure,
        "head_share_closure": off.item(),
        "features_active": count,
        "features_kept": int((pruned.targets < count).sum()),
        "edges": edges,
        "edges_kept": len(pruned.links),
        "node_threshold": config.nodes,
        "edge_threshold": config.edges,
        "influence_kept": pruned.kept,
        "influence_of_errors": errors,
        "attention_share": (shares.cells.sum() / pruned.flow.sum()).item() if len(pruned.flow) else 0.0,
    }


def _contexts(
    model: PreTrainedModel,
    name: str,
    transcoder: Transcoder,
    nodes: list[Node],
    tokenizer: Any,
    config: TraceConfig,
) -> dict[str, dict[str, Any]]:
    """Of the kept features, where else they are active and what they promote."""
    text = feature_text(name, config.data, _CONTEXT_TOKENS, tokenizer)
    kept = sorted({(node.layer, node.number) for node in nodes if node.kind == "feature"})
    if text is None or not kept:
        return {}
    found = contexts_for(model, transcoder, text, kept, _CONTEXTS, tokenizer=tokenizer)
    all_contexts = {}
    for layer, number in kept:
        promoted = promoted_tokens(model, transcoder, layer, number, _CONTEXTS)
        all_contexts[f"{layer}_{number}"] = {
            "contexts": [
                {
                    "tokens": each.tokens,
                    "activations": [round(a, 3) for a in each.activations],
                    "peak": each.peak,
                }
                for each in found[layer, number]
            ],
            "raised": [(tokenizer.decode([i]), value) for i, value in promoted.raised],
            "lowered": [(tokenizer.decode([i]), value) for i, value in promoted.lowered],
        }
    return all_contexts


def _paths(graph: Graph, pruned: Pruned, links: list[Link], nodes: list[Node], heads: int) -> list[LinkPaths]:
    position = {node.id: node.position for node in nodes}
    between = [i for i, link in enumerate(links) if position[link.source] != position[link.target]]
    found = []
    for place in sorted(between, key=lambda i: -links[i].flow)[:_MOST_PATHS]:
        t, s = pruned.links[place].tolist()
        _, one, two, longer = link_paths(graph, int(pruned.targets[t]), int(pruned.sources[s]))
        found.append(LinkPaths(place, strongest(one, two, heads, _MOST_PAIRS), longer))
    return found


def _explain_looks(
    found: Trace, model: PreTrainedModel, graph: Graph, pruned: Pruned, ids: list[str]
) -> tuple[list[HeadLook], list[str]]:
    """Of the attention edges through which most passes, why the head looks there; or why that cannot be told."""
    cells = torch.from_numpy(found.cells)
    order = cells.flatten().argsort(descending=True)[:_MOST_LOOKS]
    order = order[cells.flatten()[order] > 0]
    wanted = [tuple(int(i[0]) for i in torch.unravel_index(place[None], cells.shape)) for place in order]
    try:
        explained = looks(model, graph, pruned.sources, wanted)  # pyright: ignore
    except EdgewiseError as error:
        return [], [str(error)]
    all_found, names = [], [*ids[: len(pruned.sources)], "rest"]
    for look in explained:
        size = look.pairs.abs().flatten().argsort(descending=True)[:_MOST_PAIRS]
        q, k = torch.unravel_index(size, look.pairs.shape)
        pairs = [
            (names[i], names[j], look.pairs[i, j].item()) for i, j in zip(q.tolist(), k.tolist(), strict=True)
        ]
        weight = found.maps[look.layer, look.head, look.query, look.key].item()
        rest = look.score - sum(value for _, _, value in pairs)
        place = (look.layer, look.head, look.query, look.key)
        all_found.append(HeadLook(*place, weight, look.score, rest, pairs))
    return all_found, []


def _take_away(
    found: Trace, model: PreTrainedModel, graph: Graph, pruned: Pruned, nodes: dict[int, Node]
) -> tuple[list[Intervention], dict[str, float | None]]:
    """The kept features and heads with most influence, one by one; and how well the graph foretold it."""
    length = graph.frozen.length
    kept: Tensor = pruned.targets[pruned.targets < len(graph.features)]
    order = pruned.influence[kept + length].argsort(descending=True)
    features = kept[order][:_TAKEN]
    heads = [(layer, head) for layer, head, _ in found.heads_at(1.0)][:_TAKEN]
    by_feature, by_head = take_away(model, graph, features, heads)
    names = [nodes[int(f) + length].id for f in features], [f"L{layer}H{head}" for layer, head in heads]
    seen = []
    for effects, each in ((by_feature, names[0]), (by_head, names[1])):
        values = (effects.predicted.tolist(), effects.frozen.tolist(), effects.actual.tolist())
        seen += [Intervention(*row) for row in zip(each, *values, strict=True)]
    return seen, {
        "feature_correlation": by_feature.correlation,
        "feature_correlation_frozen": by_feature.frozen_correlation,
        "head_correlation": by_head.correlation,
        "head_correlation_frozen": by_head.frozen_correlation,
    }
