"""Traces: links add up, and are what the linearised model computes; head shares are sums over paths; the exported graph."""

import itertools
import json
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hosts import host, text, with_null_value
from rich.console import Console
from torch import Tensor

import edgewise
from edgewise.core.console import Display
from edgewise.core.errors import EdgewiseError
from edgewise.gating.tap import tap
from edgewise.models.architecture import parts_of
from edgewise.models.hooks import replace_input, replace_output
from edgewise.tracing.clusters import attribute_to_tokens
from edgewise.tracing.config import TraceConfig
from edgewise.tracing.export import LIST, graph_json, write_graph
from edgewise.tracing.graph import Graph, build_graph
from edgewise.tracing.head_shares import gauss, head_shares, link_groups
from edgewise.tracing.influence import prune, smallest_set
from edgewise.tracing.interventions import ablate, predicted_effects
from edgewise.tracing.paths import largest_paths, path_weights
from edgewise.tracing.qk_attribution import attribute_scores, rotations
from edgewise.tracing.recording import linearise
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Node
from edgewise.tracing.target_logits import TargetLogits, target_logits
from edgewise.tracing.trace import trace
from edgewise.tracing.traces import Traces
from edgewise.training.transcoder.transcoder import Transcoder, TranscoderInfo

KINDS = ("gpt2", "llama", "gpt_neox")
LENGTH = 7


def random_transcoder(layers: int, width: int, features: int = 12) -> Transcoder:
    made = Transcoder(TranscoderInfo("random", False, [], layers, features, width), seed=3)
    with torch.no_grad():
        made.encoder_bias.copy_(
            torch.randn(layers, features, generator=torch.Generator().manual_seed(4)) - 0.5
        )
        made.decoder_bias.normal_(generator=torch.Generator().manual_seed(5))
        made.input_scale.copy_(torch.linspace(0.7, 1.3, layers))
        made.output_scale.copy_(torch.linspace(1.5, 0.5, layers))
    return made


def model_and_graph(kind: str, gated: bool):
    model = edgewise.install(host(kind))
    if gated:
        has_null_value = kind != "gpt_neox"
        model = edgewise.gate(model, edgewise.GateConfig("relative", b=2.0, null_value=has_null_value))
        model = with_null_value(model) if has_null_value else model
    ids = text(1, LENGTH)[0]
    with torch.no_grad():
        linear = linearise(model, ids)
        transcoder = random_transcoder(len(linear.layers), linear.width)
        unembed: Tensor = model.get_output_embeddings().weight  # pyright: ignore
        tokens = linear.logits.topk(3).indices
        logits = TargetLogits(
            tokens,
            linear.logits.softmax(-1)[tokens],
            unembed[tokens] - unembed.mean(0),
            torch.zeros(3),
            linear.logits[tokens] - linear.logits.mean(),
        )
        return model, build_graph(linear, transcoder, logits)


every_model = pytest.mark.parametrize(
    ("kind", "gated"), [(kind, gated) for kind in KINDS for gated in (False, True)]
)


@every_model
def test_the_sums_close(kind: str, gated: bool):
    _, graph = model_and_graph(kind, gated)
    assert len(graph.features) > 50
    total = graph.adjacency.sum(1) + graph.bias
    torch.testing.assert_close(total, graph.value, rtol=1e-4, atol=1e-4)
    assert graph.closure < 1e-5


# ------------------------------------------------------------------------------------------ against the model's own modules


def frozen_run(model, graph: Graph, change: dict[tuple[int, int], Tensor], start: tuple[int, Tensor] | None):
    """Run the host's own modules with attention weights, denominators and MLP outputs kept; `change` is added to MLP outputs
    at (layer, position), `start` to the embedding. Gives what MLPs read and what the final norm gives."""
    modules, linear = parts_of(model), graph.linear
    inputs: dict[int, Tensor] = {}
    final: list[Tensor] = []

    def freeze_norm(norm, x_then: Tensor):
        has_mean = "LayerNorm" in type(norm).__name__
        eps = getattr(norm, "eps", None) or norm.variance_epsilon
        centred = x_then - x_then.mean(-1, keepdim=True) if has_mean else x_then
        sigma = (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()

        def forward(x: Tensor) -> Tensor:
            x = x - x.mean(-1, keepdim=True) if has_mean else x
            return x / sigma * norm.weight + (norm.bias if has_mean else 0.0)

        return forward

    read: dict[int, Tensor] = {}
    with ExitStack() as stack:  # what each norm read then
        for place, norm in enumerate(_norms(modules)):
            stack.enter_context(replace_input(norm, lambda x, i=place: read.setdefault(i, x)))
        model(input_ids=linear.ids[None], use_cache=False)
    with ExitStack() as stack:
        for place, norm in enumerate(_norms(modules)):
            original = norm.forward
            norm.forward = freeze_norm(norm, read[place])
            stack.callback(setattr, norm, "forward", original)
        for number, layer in enumerate(modules.layers):
            stack.enter_context(replace_input(layer.mlp, lambda x, i=number: inputs.setdefault(i, x)))
            given = linear.mlp_outputs[number].clone()
            for (where, position), vector in change.items():
                if where == number:
                    given[position] += vector
            stack.enter_context(replace_output(layer.mlp, lambda y, given=given: given[None].to(y)))
        if start is not None:
            moved = linear.embedding.clone()
            moved[start[0]] += start[1]
            stack.enter_context(replace_input(modules.layers[0].module, lambda x: moved[None].to(x)))
        stack.enter_context(replace_output(modules.final_norm, lambda y: final.append(y)))
        weights = [layer.weights for layer in linear.layers]
        stack.enter_context(tap(model, edit={"weights": lambda i, w: weights[i][None].to(w)}))
        model(input_ids=linear.ids[None], use_cache=False)
    return torch.cat([inputs[i] for i in range(len(modules.layers))]), final[0][0]


def _norms(modules):
    return [norm for layer in modules.layers for norm in (layer.norm_1, layer.norm_2)] + [modules.final_norm]


@every_model
@torch.no_grad()
def test_edges_are_what_the_frozen_model_does(kind: str, gated: bool):
    model, graph = model_and_graph(kind, gated)
    model.double()
    features, count, length = graph.features, len(graph.features), LENGTH
    before, reached = frozen_run(model, graph, {}, None), 0
    sources = [
        2,
        length + count // 3,
        length + count - 5,
        length + count + 4,
        length + count + 2 * length + 1,
    ]
    for source in sources:
        size = 1.0  # the function is linear: a whole step is as good as a small one
        change: dict[tuple[int, int], Tensor] = {}
        start = None
        if source < length:
            start = source, graph.linear.embedding[source] * size
        for layer in range(len(graph.linear.layers)):
            written = graph.source_write(torch.tensor([source]), layer)
            if written is not None:
                for position in written[0].abs().sum(-1).nonzero()[:, 0].tolist():
                    change[layer, position] = written[0, position] * size
        after = frozen_run(model, graph, change, start)
        moved = (after[0] - before[0]).float()  # [L, T, D]
        expected = torch.zeros(graph.n_targets)
        for i in range(count):
            encoders, _ = graph.transcoder.reads(int(features.layer[i]))
            expected[i] = encoders[features.index[i]] @ moved[features.layer[i], features.position[i]]
        expected[count:] = graph.logits.direction @ (after[1] - before[1])[-1].float()
        torch.testing.assert_close(graph.adjacency[:, source], expected, rtol=1e-3, atol=2e-5)
        reached += int(expected.abs().max() > 1e-3)
    assert reached >= 3


# ---------------------------------------------------------------------------------------------------------- heads' shares


def paths_by_hand(graph: Graph, target: int, source: int) -> dict[tuple[tuple[int, int], ...], float]:
    """Walk every path of a link: for each layer, past it or through one of its heads."""
    linear, layers = graph.linear, graph.linear.layers
    heads = layers[0].weights.shape[0]
    one = torch.tensor([target])
    if target < len(graph.features):
        end_layer = int(graph.features.layer[target])
        gradient = graph.target_gradient(one, end_layer)[0]  # pyright: ignore
        last_head_layer = end_layer if not linear.parallel else end_layer - 1
    else:
        gradient, last_head_layer, end_layer = graph.final_gradient(one)[0], len(layers) - 1, len(layers)
    found = {}
    begins = [(-1, graph.source_embedding(torch.tensor([source]))[0])]
    for layer in range(len(layers)):
        written = graph.source_write(torch.tensor([source]), layer)
        begins.append((layer, torch.zeros_like(begins[0][1]) if written is None else written[0]))
    for choice in itertools.product(range(-1, heads), repeat=len(layers)):
        through = tuple((layer, head) for layer, head in enumerate(choice) if head >= 0)
        if through and through[-1][0] > last_head_layer:
            continue
        total = 0.0
        for at, vector in begins:
            if at >= end_layer or (through and at >= through[0][0]):
                continue
            r = vector
            for layer, head in through:
                own = layers[layer]
                r = own.weights[head] @ own.head_values(r[None])[0, head] @ own.outputs[head]
            total += (r * gradient).sum().item()
        found[through] = total
    return found


@every_model
@torch.no_grad()
def test_a_path_gives_each_of_its_heads_the_same_part(kind: str, gated: bool):
    _, graph = model_and_graph(kind, gated)
    pruned = prune(graph, 1.0, 1.0)
    shares = head_shares(graph, pruned)
    weights = graph.adjacency[pruned.targets[pruned.links[:, 0]], pruned.sources[pruned.links[:, 1]]]
    closed = shares.heads.sum((1, 2)) + shares.straight
    torch.testing.assert_close(closed, weights, rtol=1e-4, atol=1e-5)
    assert shares.cells.sum() <= pruned.flow.sum() * (1 + 1e-5)
    for place in (0, len(weights) // 2, len(weights) - 1, int(shares.heads.abs().sum((1, 2)).argmax())):
        t, s = pruned.links[place].tolist()
        target, source = int(pruned.targets[t]), int(pruned.sources[s])
        paths = paths_by_hand(graph, target, source)
        assert sum(paths.values()) == pytest.approx(weights[place].item(), abs=1e-5)
        expected = torch.zeros_like(shares.heads[place])
        for through, weight in paths.items():
            for layer, head in through:
                expected[layer, head] += weight / len(through)
        torch.testing.assert_close(shares.heads[place], expected, rtol=1e-3, atol=1e-5)
        assert shares.straight[place].item() == pytest.approx(paths[()], abs=1e-5)
        straight, one, two, longer = path_weights(graph, target, source)
        heads = expected.shape[1]
        assert straight == pytest.approx(paths[()], abs=1e-5)
        for through, weight in paths.items():
            names = [layer * heads + head for layer, head in through]
            if len(through) == 1:
                assert one[names[0]].item() == pytest.approx(weight, abs=1e-5)
            if len(through) == 2:
                assert two[names[0], names[1]].item() == pytest.approx(weight, abs=1e-5)
        assert longer == pytest.approx(sum(w for p, w in paths.items() if len(p) > 2), abs=1e-5)


@torch.no_grad()
def test_head_shares_with_little_memory_are_the_same():
    _, graph = model_and_graph("gpt2", True)
    pruned = prune(graph, 1.0, 1.0)
    much = head_shares(graph, pruned)
    little = head_shares(graph, pruned, kept_bytes=1)  # one link at a time
    for all_at_once, one_by_one in zip(vars(much).values(), vars(little).values(), strict=True):
        torch.testing.assert_close(all_at_once, one_by_one, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def test_groups_of_links_take_at_most_the_bytes_allowed():
    """Every link is in one group, with its target; a link that takes more is alone."""
    _, graph = model_and_graph("gpt2", True)
    pruned = prune(graph, 1.0, 1.0)
    alone = max(group.bytes for group in link_groups(graph, pruned))
    for allowed in (alone // 3, alone // 40, 1):
        groups = list(link_groups(graph, pruned, allowed))
        assert len(groups) >= min(3, len(pruned.links))
        assert [links.start for _, links, _ in groups] == [0, *(links.stop for _, links, _ in groups[:-1])]
        assert groups[-1][1].stop == len(pruned.links)
        for targets, links, size in groups:
            assert size <= allowed or links.stop - links.start == 1
            led_to = pruned.links[links, 0]
            assert (targets.start, targets.stop - 1) == (led_to.min(), led_to.max())


@pytest.mark.parametrize("layers", [1, 2, 6, 12, 30, 80])
def test_few_strengths_are_enough_for_paths_of_any_length(layers: int):
    points = gauss(layers)
    for heads in range(1, layers + 1):
        assert sum(weight * point ** (heads - 1) for point, weight in points) == pytest.approx(
            1 / heads, rel=1e-5
        )
    assert len(points) == {1: 1, 2: 1, 6: 3, 12: 6, 30: 10, 80: 17}[layers]


def test_a_trace_that_does_not_fit_in_memory_is_refused(capsys):
    edgewise.trace("pocket", display=Display())
    printed = capsys.readouterr().err
    assert re.search(r"\d+ active features on 8 tokens; memory about \d+\.\d GB in all", printed)
    assert re.search(r"\d+ links among \d+ nodes, split over heads; memory about \d+\.\d GB in all", printed)
    with pytest.raises(
        EdgewiseError, match=r"active features on 8 tokens, which would .* so that fewer are active"
    ):
        edgewise.trace("pocket", memory_limit=1 << 20)


def test_a_quiet_screen_leaves_what_others_print_alone(capsys):
    """A display that nobody sees would still take standard output, even on a terminal."""
    display = Display(quiet=True)
    display.console = Console(stderr=True, quiet=True, force_terminal=True)
    with display.bar("at work", 2) as each:
        print("one")
        each(2)
    with display.status("at work"):
        print("two")
    assert capsys.readouterr().out == "one\ntwo\n"


def test_paths_are_named_largest_first():
    one, two = torch.tensor([0.1, -0.5, 0, 0]), torch.zeros(4, 4)
    two[1, 2] = 0.3
    assert largest_paths(one, two, 2, 3) == [
        ("L0H1", pytest.approx(-0.5)),
        ("L0H1 then L1H0", pytest.approx(0.3)),
        ("L0H0", pytest.approx(0.1)),
    ]
    assert len(largest_paths(one, two, 2, 9)) == 3


def test_closed_heads_carry_nothing():
    model = edgewise.gate(edgewise.install(host("gpt2")), edgewise.GateConfig("relative", b=0.6))
    with torch.no_grad():
        model.transformer.h[1].attn.edge_gate.b[2] = -1.0  # pyright: ignore
        linear = linearise(model, text(1, LENGTH)[0])
        logits = target_logits(model, linear.logits, linear.logits.argmax()[None])
        graph = build_graph(linear, random_transcoder(3, 32), logits)
        shares = head_shares(graph, prune(graph, 1.0, 1.0))
    assert not shares.heads[:, 1, 2].any()
    assert not shares.cells[1, 2].any()
    closed = linear.layers[0].weights == 0
    assert closed.sum() > 40
    assert not shares.cells[0][closed].any()


# ------------------------------------------------------------------------------------------------ why a head looks there


@every_model
@torch.no_grad()
def test_scores_are_sums_over_pairs_of_sources(kind: str, gated: bool):
    model, graph = model_and_graph(kind, gated)
    every = torch.arange(graph.n_sources)
    cells = [(0, 1, 5, 2), (1, 3, 6, 0), (2, 0, 4, 4)]
    for attributed in attribute_scores(model, graph, every, cells):
        layer, head, query, key = attributed.edge
        expected = graph.linear.scores[layer][head, query, key].item()
        assert attributed.score == expected
        assert attributed.pairs.sum().item() == pytest.approx(expected, abs=1e-4 * max(1.0, abs(expected)))
        # with all sources named, only constants are left, and they are the same whatever the prompt says
        few = attribute_scores(model, graph, every[:3], [attributed.edge])[0]
        torch.testing.assert_close(few.pairs[:3, :3], attributed.pairs[:3, :3])
        assert few.pairs.sum().item() == pytest.approx(expected, abs=1e-4 * max(1.0, abs(expected)))


@torch.no_grad()
def test_turning_depends_on_the_distance_only():
    """Of a rotary model, a source's pair counts the same when both tokens move on by one."""
    model, graph = model_and_graph("llama", False)
    (queries, keys), *_ = rotations(model, graph.linear.ids)
    assert not torch.allclose(queries[0] @ keys[3].T, queries[0] @ keys[1].T, atol=1e-2)
    torch.testing.assert_close(queries[5] @ keys[2].T, queries[4] @ keys[1].T, rtol=1e-4, atol=1e-5)


def test_normalised_queries_are_refused():
    model, graph = model_and_graph("qwen3", False)
    with pytest.raises(EdgewiseError, match="queries and keys"):
        attribute_scores(model, graph, torch.arange(3), [(0, 0, 1, 0)])


# ------------------------------------------------------------------------------------------------------------ interventions


@every_model
@torch.no_grad()
def test_predictions_are_total_effects(kind: str, gated: bool):
    """By the graph alone: an effect is direct, plus whatever the features it feeds pass on."""
    _, graph = model_and_graph(kind, gated)
    features, count = graph.features, len(graph.features)
    weights = graph.logits.probability / graph.logits.probability.sum()
    edges = graph.adjacency[:, graph.feature_sources]
    slope = weights @ (edges[count:] / features.activation)
    direct = slope.clone()
    for layer in reversed(range(len(graph.linear.layers))):
        part = features.of_layer(layer)
        slope += slope[part] @ (edges[:count][part] / features.activation)
    by_feature, _ = predicted_effects(graph)
    torch.testing.assert_close(by_feature, -slope * features.activation, rtol=1e-3, atol=1e-5)
    assert (slope - direct).abs().max() > 1e-3


@torch.no_grad()
def test_taking_away_is_done_in_the_model():
    model, graph = model_and_graph("gpt2", True)
    which, heads = torch.tensor([3, 20]), [(0, 1), (2, 3)]
    by_feature, by_head = ablate(model, graph, which, heads)
    weights = graph.logits.probability / graph.logits.probability.sum()

    def change(logits: Tensor) -> float:
        centred = logits[graph.logits.tokens] - logits.mean()
        return ((centred - graph.logits.value) @ weights).item()

    for i, feature in enumerate(which.tolist()):
        with ExitStack() as stack:
            for number, layer in enumerate(parts_of(model).layers):
                gone = graph.source_write(torch.tensor([feature + LENGTH]), number)
                if gone is not None:
                    stack.enter_context(replace_output(layer.mlp, lambda y, gone=gone: y - gone))
            logits = model(input_ids=graph.linear.ids[None]).logits[0, -1]
        assert by_feature.actual[i].item() == pytest.approx(change(logits), abs=1e-5)
    for i, (number, head) in enumerate(heads):
        drop = {  # it attends to nothing
            "weights": lambda i, w, n=number, h=head: (
                w * (torch.arange(4) != h)[:, None, None] if i == n else w
            )
        }
        with tap(model, edit=drop):
            logits = model(input_ids=graph.linear.ids[None]).logits[0, -1]
        assert by_head.actual[i].item() == pytest.approx(change(logits), abs=1e-5)


@every_model
@torch.no_grad()
def test_where_nothing_comes_after_the_frozen_model_does_exactly_what_the_graph_says(kind: str, gated: bool):
    model, graph = model_and_graph(kind, gated)
    last = (graph.features.layer == 2) & (graph.features.position == LENGTH - 1)
    effects, _ = ablate(model, graph, last.nonzero()[:, 0], [])
    assert effects.predicted.abs().max() > 1e-3
    torch.testing.assert_close(effects.frozen, effects.predicted, rtol=1e-3, atol=1e-4)
    assert (effects.actual - effects.predicted).abs().max() > 1e-3  # the final norm moves


@pytest.mark.parametrize("gated", [False, True])
@torch.no_grad()
def test_a_head_of_the_last_layer_works_straight_and_through_its_mlps_features(gated: bool):
    """Both written out: its prediction is their sum."""
    model, graph = model_and_graph("gpt2", gated)
    heads = [(2, head) for head in range(4)]
    _, effects = ablate(model, graph, torch.tensor([0]), heads)
    mlp, norm = graph.linear.layers[2], graph.linear.final_norm
    direction = (graph.logits.probability / graph.logits.probability.sum()) @ graph.logits.direction
    assert effects.predicted.abs().max() > 0
    written = (graph.linear.head_outputs[2] - mlp.null_value[:, None]) @ mlp.outputs  # [heads, T, D]
    end = torch.zeros(1, LENGTH, graph.linear.width)
    end[0, -1] = direction
    straight = -(written * norm.pull(end)).sum((-2, -1))
    # layer 2 is the last: what its heads do beyond this goes through its own MLP's features
    through_features = effects.predicted - straight
    features = graph.features.of_layer(2)
    slope = torch.zeros(4)
    for i in range(features.start, features.stop):
        read = graph.target_gradient(torch.tensor([i]), 2)
        writes = graph.transcoder.writes(2)[graph.features.index[i], 0]
        place = int(graph.features.position[i])
        onward = (norm.pull(end)[0, place] * writes).sum()
        slope -= onward * (written * read).sum((-2, -1))  # pyright: ignore
    torch.testing.assert_close(through_features, slope, rtol=1e-3, atol=1e-4)


# ------------------------------------------------------------------------------------------------------- influence, clusters


@torch.no_grad()
def test_influence_ends_in_tokens_and_errors():
    _, graph = model_and_graph("llama", True)
    pruned = prune(graph, 0.7, 0.9)
    ends = torch.cat([pruned.influence[:LENGTH], pruned.influence[LENGTH + len(graph.features) :]])
    assert ends.sum().item() == pytest.approx(1.0, abs=1e-4)
    assert 0.4 < pruned.kept < 1.0
    everything = prune(graph, 1.0, 1.0)
    assert len(everything.links) > len(pruned.links)
    # whatever is kept leads from somewhere to a logit
    sources, targets = set(pruned.sources.tolist()), set(pruned.targets.tolist())
    for feature in [t for t in targets if t < len(graph.features)]:
        assert feature + LENGTH in sources


@torch.no_grad()
def test_origins_are_shares():
    _, graph = model_and_graph("gpt2", False)
    features, logits = attribute_to_tokens(graph)
    known = features.sum(1) > 0
    torch.testing.assert_close(features[known].sum(1), torch.ones(int(known.sum())))
    torch.testing.assert_close(logits.sum(1), torch.ones(3))
    # nothing can come from a token that stands later
    for i in range(len(graph.features)):
        assert not features[i, graph.features.position[i] + 1 :].any()


def test_the_smallest_set():
    values = torch.tensor([0.1, 0.5, 0.0, 0.4])
    assert smallest_set(values, 0.5).tolist() == [1]
    assert smallest_set(values, 0.51).tolist() == [1, 3]
    assert smallest_set(values, 1.0).tolist() == [1, 3, 0]
    assert smallest_set(torch.zeros(3), 0.5).tolist() == []


# ---------------------------------------------------------------------------------------------------------- the whole trace


@pytest.fixture(scope="module")
def pocket_trace() -> Trace:
    transcoder = random_transcoder(6, 128, 64)
    with torch.no_grad():
        transcoder.output_scale.fill_(0.3)
    return trace("pocket-sparse", TraceConfig(node_threshold=0.95), transcoders=transcoder)[0]


def test_a_trace_of_the_pocket_twin(pocket_trace: Trace):
    assert pocket_trace.logits[0][0].strip() == "small"
    assert pocket_trace.kind == "sparse"
    assert pocket_trace.metrics["closure"] < 1e-4
    assert pocket_trace.metrics["head_share_closure"] < 1e-5
    assert pocket_trace.tokens[pocket_trace.main_key] == "large"
    heads = pocket_trace.heads_at(0.8)
    parts = [part for _, _, part in heads]
    assert parts == sorted(parts, reverse=True)
    assert sum(parts) >= 0.8 > sum(parts[:-1])
    carrying = pocket_trace.heads_at(0.8, key=4, query=7)
    assert all(pocket_trace.maps[layer, head, 7, 4] > 0 for layer, head, _ in carrying)
    assert pocket_trace.head_flow().sum() == pytest.approx(
        sum(pocket_trace.head_flow(query=q).sum() for q in range(8)), rel=1e-5
    )
    assert sum(pocket_trace.origins) == pytest.approx(1.0, abs=1e-4)
    assert pocket_trace.qk_attributions
    for qk in pocket_trace.qk_attributions:
        assert qk.rest + sum(value for _, _, value in qk.pairs) == pytest.approx(qk.score, abs=1e-4)
        assert pocket_trace.maps[qk.layer, qk.head, qk.query, qk.key] == pytest.approx(qk.weight)


def test_it_saves_and_loads(pocket_trace: Trace, tmp_path: Path):
    pocket_trace.save(tmp_path)
    again = Trace.load(tmp_path)
    assert again.nodes == pocket_trace.nodes
    assert again.links == pocket_trace.links
    assert again.clusters == pocket_trace.clusters
    assert np.array_equal(again.cells, pocket_trace.cells)
    assert again.heads_at(0.8) == pocket_trace.heads_at(0.8)
    (tmp_path / "trace.json").write_text("{")
    with pytest.raises(EdgewiseError, match="holds no trace"):
        Trace.load(tmp_path)


@pytest.mark.parametrize("kinds", [("sparse",), ("dense", "sparse"), ("dense", "dense")])
def test_traces_are_saved_with_their_graphs_and_loaded(pocket_trace: Trace, kinds, tmp_path: Path):
    traces = Traces(tuple(replace(pocket_trace, kind=kind, model=f"{i}") for i, kind in enumerate(kinds)))
    traces.save(tmp_path)
    again = Traces.load(tmp_path)
    assert [trace.model for trace in again] == [trace.model for trace in traces]
    assert again.table() == traces.table() and len(again.table()[0]) == 1 + len(kinds)
    assert len(json.loads((tmp_path / "graphs" / LIST).read_text())["graphs"]) == len(kinds)
    assert "heads at 80%" in repr(again) and "<table>" in again._repr_html_()


NODE_FIELDS = {
    "node_id": str,
    "feature": int,
    "layer": str,
    "ctx_idx": int,
    "feature_type": str,
    "jsNodeId": str,
    "clerp": str,
}


def check_schema(content: dict) -> None:
    """What readers of the format rely on."""
    assert {"metadata", "qParams", "nodes", "links"} <= content.keys()
    metadata = content["metadata"]
    assert {"slug": str, "scan": str, "prompt": str}.items() <= {
        k: type(v) for k, v in metadata.items()
    }.items()
    assert metadata["schema_version"] == 1
    assert all(isinstance(token, str) for token in metadata["prompt_tokens"])
    assert {"node_threshold", "edge_threshold"} <= metadata["pruning_settings"].keys()
    assert content["qParams"]["linkType"] == "both"
    ids = [node["node_id"] for node in content["nodes"]]
    assert len(ids) == len(set(ids))
    for node in content["nodes"]:
        for field, kind in NODE_FIELDS.items():
            assert isinstance(node[field], kind), field
        assert 0 <= node["ctx_idx"] < len(metadata["prompt_tokens"])
        if node["feature_type"] == "cross layer transcoder":
            layer, number, position = map(int, node["node_id"].split("_"))
            assert node["feature"] == (layer + number) * (layer + number + 1) // 2 + number
            assert (node["layer"], node["ctx_idx"]) == (str(layer), position)
        elif node["feature_type"] == "embedding":
            assert node["layer"] == "E" and node["node_id"].startswith("E_")
        elif node["feature_type"] == "logit":
            assert f"(p={node['token_prob']:.3f})" in node["clerp"]
        else:
            assert node["feature_type"] == "mlp reconstruction error"
            assert node["feature"] == -1
    for link in content["links"]:
        assert link["source"] in ids and link["target"] in ids
        assert isinstance(link["weight"], float)
    for name, *members in content["qParams"]["supernodes"]:
        assert isinstance(name, str) and set(members) <= set(ids)
    assert set(content["qParams"]["pinnedIds"]) <= set(ids)


def test_the_graph_that_others_read(pocket_trace: Trace, tmp_path: Path):
    path = write_graph(pocket_trace, tmp_path)
    content = json.loads(path.read_text())
    check_schema(content)
    write_graph(pocket_trace, tmp_path)  # again: still one in the list
    listed = json.loads((tmp_path / LIST).read_text())["graphs"]
    assert listed == [content["metadata"]]
    assert path.stem == content["metadata"]["slug"]
    carried = [link for link in content["links"] if link["heads"]]
    assert carried
    for link in carried:
        total = link["straight"] + sum(weight for _, weight in link["heads"])
        assert total == pytest.approx(link["weight"], abs=0.06 * abs(link["weight"]) + 1e-3)


def test_token_texts_survive(pocket_trace: Trace, tmp_path: Path):
    odd = ["\n", "\t", "</script>", '"', "\\", "🙂", "שלום", "\u202e" + "x" * 200]
    content = json.loads(write_graph(replace(pocket_trace, tokens=odd), tmp_path).read_text())
    assert content["metadata"]["prompt_tokens"] == odd


def test_an_error_and_a_feature_do_not_share_a_name(pocket_trace: Trace):
    shared = [
        Node("0_3_2", "feature", 0, 3, 2, "of", 0.1, 1.0, 2),
        Node("error_3_2", "error", 3, -1, 2, "of", 0.1),
        pocket_trace.nodes[-1],
    ]
    made = replace(
        pocket_trace, nodes=shared, links=[], clusters=[], head_shares=pocket_trace.head_shares[:0]
    )
    check_schema(graph_json(made))


# ----------------------------------------------------------------------------------------------------------------- bad input


def test_bad_input_is_one_clear_line(pocket_trace: Trace, tmp_path: Path):
    transcoder = random_transcoder(6, 128, 8)
    with pytest.raises(EdgewiseError, match="not one token of pocket's vocabulary"):
        trace("pocket", TraceConfig(logit="antidisestablishment"), transcoders=transcoder)
    with pytest.raises(EdgewiseError, match="tokens; give pocket one of 1 to 128"):
        trace("pocket", TraceConfig(prompt="the " * 200), transcoders=transcoder)
    with pytest.raises(EdgewiseError, match=r"does not know .*xylophone"):
        trace("pocket", TraceConfig(prompt='The opposite of " xylophone " is "'), transcoders=transcoder)
    with torch.no_grad():
        transcoder.encoder_bias.fill_(-1e3)
    with pytest.raises(EdgewiseError, match="no feature of the transcoder is active"):
        trace("pocket", transcoders=transcoder)
    with pytest.raises(EdgewiseError, match="there is no key 99"):
        pocket_trace.heads_at(0.8, key=99)
    with pytest.raises(EdgewiseError, match="share must be"):
        pocket_trace.heads_at(1.5)
    with pytest.raises(EdgewiseError, match="`node_threshold` must be above 0"):
        TraceConfig(node_threshold=0.0)
    with pytest.raises(EdgewiseError, match="counts tokens from 1"):
        TraceConfig(key=0)
    with pytest.raises(
        EdgewiseError, match="`key` 8 is not before the last token, which is number 8; give 1 to 7"
    ):
        trace("pocket", TraceConfig(key=8), transcoders=transcoder)
    with pytest.raises(EdgewiseError, match="`transcoders` must be as many as the models, 2, not 1"):
        trace(["pocket", "pocket-sparse"], transcoders=transcoder)
    with pytest.raises(EdgewiseError, match="give the transcoder"):
        trace("pocket-addition", TraceConfig(prompt="53+21="))


def test_a_model_in_half_precision_is_traced_and_stays_as_it_is():
    model, tokenizer = edgewise.load("pocket").bfloat16(), edgewise.load_tokenizer("pocket")
    (traced,) = trace(model, transcoders=random_transcoder(6, 128, 8), tokenizer=tokenizer)
    assert traced.metrics["closure"] < 1e-4
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_models_that_are_not_understood_are_refused():
    for kind in ("olmo2", "gemma3"):
        model = edgewise.install(host(kind))
        with pytest.raises(EdgewiseError):
            linearise(model, text(1, LENGTH)[0])
