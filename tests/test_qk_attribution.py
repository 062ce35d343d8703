"""QK attribution: attention scores are sums over pairs of sources."""

import pytest
import torch
from traced import every_model, model_and_graph

from edgewise.core.errors import EdgewiseError
from edgewise.tracing.qk_attribution import attribute_scores, rotations


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
def test_rotations_depend_on_the_distance_only():
    """In a rotary model, a pair of sources contributes the same when both tokens move on by one."""
    model, graph = model_and_graph("llama", False)
    (queries, keys), *_ = rotations(model, graph.linear.ids)
    assert not torch.allclose(queries[0] @ keys[3].T, queries[0] @ keys[1].T, atol=1e-2)
    torch.testing.assert_close(queries[5] @ keys[2].T, queries[4] @ keys[1].T, rtol=1e-4, atol=1e-5)


def test_normalised_queries_are_refused():
    model, graph = model_and_graph("qwen3", False)
    with pytest.raises(EdgewiseError, match="queries and keys"):
        attribute_scores(model, graph, torch.arange(3), [(0, 0, 1, 0)])
