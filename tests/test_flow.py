"""Flows: open attention edges, collected from models and drawn."""

import numpy as np
import pytest
from hand_made_results import axes_of, flow_of, lines_of, texts, whole_text

import edgewise
from edgewise.core.errors import EdgewiseError
from edgewise.flow.collect import collect_flow
from edgewise.flow.config import FlowConfig
from edgewise.flow.result import Flows
from edgewise.models.loaded import load_models
from edgewise.plots.flow import MAX_LINES, MIN_WEIGHT, draw_flow, visible_edges


def test_a_line_for_each_open_edge_above_the_smallest_weight(tmp_path):
    tokens = ["one", "two", "three", "four", "five"]
    flows = Flows([[flow_of(tokens, "dense")], [flow_of(tokens, "sparse")]])
    dense, sparse = (row[0] for row in flows.rows)
    assert len(dense.edges) == len(sparse.edges) == 2 * 3 * 15
    n_visible = sum(edge.weight >= MIN_WEIGHT for edge in dense.edges)
    assert len(visible_edges(dense)) == n_visible < len(dense.edges)
    figure = draw_flow(flows, colour_heads=True, caption=True)
    assert lines_of(figure) == [n_visible, len(sparse.edges)]
    for axes, flow in zip([x for x in axes_of(figure) if x.collections], (dense, sparse), strict=True):
        (drawn,) = axes.collections
        for path, colour, edge in zip(
            drawn.get_paths(), drawn.get_colors(), visible_edges(flow), strict=True
        ):
            (key, low), (query, high) = path.vertices
            assert (low, high) == (edge.layer, edge.layer + 1)
            assert (round(key), round(query)) == (edge.key, edge.query)
            assert 0 <= colour[3] - edge.weight < 0.0201
    text = whole_text(figure, tmp_path)
    assert f"{len(dense.edges) - n_visible} edges of the dense model with a weight under 0.01" in text
    for part in (
        *tokens,
        "90 open edges",
        "L0",
        "L1",
        "a dense one",
        "(sparse)",
        "opacity: weight, hue: head",
    ):
        assert part in text


def test_without_hues_a_line_is_the_heaviest_head_between_two_tokens_and_ends_at_their_places():
    flow = flow_of(["one", "two", "three"], "sparse")
    (axes,) = axes_of(draw_flow(Flows([[flow]])))
    (drawn,) = axes.collections
    heaviest: dict[tuple[int, int, int], float] = {}
    for edge in flow.edges:
        place = (edge.layer, edge.query, edge.key)
        heaviest[place] = max(heaviest.get(place, 0.0), edge.weight)
    lines = {}
    for path, colour in zip(drawn.get_paths(), drawn.get_colors(), strict=True):
        (key, layer), (query, _) = path.vertices
        lines[int(layer), int(query), int(key)] = colour[3]
    assert lines.keys() == heaviest.keys()
    assert all(0 <= lines[place] - weight < 0.0201 for place, weight in heaviest.items())
    # words stand side by side where they fit
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0.0}


def test_heads_have_hues_on_request(tmp_path):
    for heads in (3, 12):
        flows = Flows([[flow_of(["a", "b"], "sparse", heads=heads)]])
        plain, coloured = draw_flow(flows), draw_flow(flows, colour_heads=True)
        hues = {tuple(c[:3]) for axes in axes_of(coloured) for x in axes.collections for c in x.get_colors()}
        assert len(hues) == heads and f"H{heads - 1}" in texts(coloured, tmp_path)
        assert len({tuple(c[:3]) for x in axes_of(plain)[0].collections for c in x.get_colors()}) == 1


def test_the_number_of_lines_is_limited(tmp_path):
    tokens = [f"word{i}" for i in range(30)]
    flows = Flows([[flow_of(tokens, kind, layers=12, heads=12)] for kind in ("dense", "sparse")])
    figure = draw_flow(flows, colour_heads=True, caption=True)
    assert sum(lines_of(figure)) == MAX_LINES
    assert f"{MAX_LINES // 2:,} heaviest" in whole_text(figure, tmp_path)
    assert (tmp_path / "figure.svg").stat().st_size < 3e6


def test_a_flow_holds_the_open_edges_of_each_model():
    prompt = 'The opposite of " large " is "'
    flows = collect_flow(["pocket", "pocket-sparse"], FlowConfig((prompt,)))
    (dense,), (sparse,) = flows.rows
    assert (dense.kind, sparse.kind) == ("dense", "sparse") and dense.tokens == prompt.split()
    assert dense.answers == sparse.answers == [*[""] * 7, "small"]
    assert len(dense.edges) == 6 * 8 * 36 > 4 * len(sparse.edges) > 0
    model, tokenizer = edgewise.load("pocket-sparse"), edgewise.load_tokenizer("pocket")
    with edgewise.tap(model, read=["weights"]) as n_visible:
        model(**tokenizer(prompt, return_tensors="pt"))
    maps = np.zeros((6, 8, 8, 8))
    for edge in sparse.edges:
        maps[edge[:4]] = edge.weight
    expected = np.stack([x[0].detach().numpy() for _, x in sorted(n_visible.last["weights"].items())])
    np.testing.assert_allclose(maps, expected, rtol=1e-3)
    loaded = load_models(model, tokenizer=tokenizer)
    assert collect_flow(loaded, FlowConfig((prompt,))).rows[0][0].edges == sparse.edges


def test_the_three_sums_of_an_addition_model(tmp_path):
    flows = collect_flow("pocket-addition")
    assert [flow.prompt for flow in flows.rows[0]] == ["53+21", "36+28", "43+59"]
    assert ["".join(flow.answers) for flow in flows.rows[0]] == ["00074", "00064", "00102"]
    assert flows.rows[0][0].tokens == [*"53+21=?????"]
    figure = draw_flow(flows)
    assert len([x for x in lines_of(figure) if x]) == 3 and "36+28" in whole_text(figure, tmp_path)
    for written in ("53+21=", "5 3 + 2 1", "53+21=?????"):
        assert collect_flow("pocket-addition", FlowConfig((written,))).rows[0][0] == flows.rows[0][0]


def test_bad_prompts_models_and_files_are_refused(tmp_path):
    model = edgewise.load("pocket")
    for (models, prompt), sentence in [
        (("pocket", ()), "give a text as `prompt`"),
        (("pocket", (" ",)), "give a text as `prompt`"),
        (("pocket", ("The xylophone",)), "does not know \\(xylophone"),
        (("pocket", ("The " * 200,)), "the prompt has 200 tokens"),
        (("pocket-addition", ("5+2",)), "sums of two-digit numbers"),
        ((["pocket", "pocket-addition"], ("5",)), "read different tokens"),
        (([], ("The",)), "give one model"),
        ((model, ("The",)), "pass their tokenizer"),
        (("pocket", "The"), "`prompt` must be a tuple"),
    ]:
        with pytest.raises(EdgewiseError, match=sentence):
            collect_flow(models, FlowConfig(prompt))
    (tmp_path / "flow.json").write_text('{"rows": [[{"model": 1}]]}')
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(EdgewiseError, match="no flows that edgewise wrote"):
            Flows.load(path)
