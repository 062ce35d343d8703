"""Head shares are sums over the paths of a link, whatever memory is allowed; paths by name."""

import itertools

import pytest
import torch
from hosts import host, text
from traced import LENGTH, every_model, model_and_graph, random_transcoder

import edgewise
from edgewise.models.linearise import linearise
from edgewise.tracing.graph import Graph, build_graph
from edgewise.tracing.head_shares import gauss, head_shares, link_groups
from edgewise.tracing.influence import prune
from edgewise.tracing.paths import largest_paths, path_weights
from edgewise.tracing.target_logits import target_logits


def enumerated_paths(graph: Graph, target: int, source: int) -> dict[tuple[tuple[int, int], ...], float]:
    """The weight of every path of a link: for each layer, past it or through one of its heads."""
    linear, layers = graph.linear, graph.linear.layers
    heads = layers[0].weights.shape[0]
    one = torch.tensor([target])
    if target < len(graph.features):
        end_layer = int(graph.features.layer[target])
        gradient = graph.target_gradient(one, end_layer)[0]  # pyright: ignore
        last_head_layer = end_layer if not linear.parallel else end_layer - 1
    else:
        gradient, last_head_layer, end_layer = graph.final_gradient(one)[0], len(layers) - 1, len(layers)
    paths = {}
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
        paths[through] = total
    return paths


@every_model
@torch.no_grad()
def test_a_path_gives_each_of_its_heads_the_same_share(kind: str, gated: bool):
    _, graph = model_and_graph(kind, gated)
    pruned = prune(graph, 1.0, 1.0)
    shares = head_shares(graph, pruned)
    weights = graph.adjacency[pruned.targets[pruned.links[:, 0]], pruned.sources[pruned.links[:, 1]]]
    closed = shares.heads.sum((1, 2)) + shares.straight
    torch.testing.assert_close(closed, weights, rtol=1e-4, atol=1e-5)
    assert shares.cells.sum() <= pruned.flow.sum() * (1 + 1e-5)
    for link in (0, len(weights) // 2, len(weights) - 1, int(shares.heads.abs().sum((1, 2)).argmax())):
        t, s = pruned.links[link].tolist()
        target, source = int(pruned.targets[t]), int(pruned.sources[s])
        paths = enumerated_paths(graph, target, source)
        assert sum(paths.values()) == pytest.approx(weights[link].item(), abs=1e-5)
        expected = torch.zeros_like(shares.heads[link])
        for through, weight in paths.items():
            for layer, head in through:
                expected[layer, head] += weight / len(through)
        torch.testing.assert_close(shares.heads[link], expected, rtol=1e-3, atol=1e-5)
        assert shares.straight[link].item() == pytest.approx(paths[()], abs=1e-5)
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
def test_few_quadrature_points_are_enough_for_paths_of_any_length(layers: int):
    points = gauss(layers)
    for heads in range(1, layers + 1):
        assert sum(weight * point ** (heads - 1) for point, weight in points) == pytest.approx(
            1 / heads, rel=1e-5
        )
    assert len(points) == {1: 1, 2: 1, 6: 3, 12: 6, 30: 10, 80: 17}[layers]


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
