"""Figures of circuits: curves and wiring."""

from dataclasses import replace

import numpy as np
from hand_made_results import axes_of, both, circuit, lines_of, panels, result_of, texts, whole_text
from matplotlib.colors import to_rgba

from edgewise.circuits.result import Curve
from edgewise.plots.curves import HIGHEST, LOWEST, draw_curves
from edgewise.plots.style import (
    DENSE,
    SPARSE,
    TARGET,
)
from edgewise.plots.wiring import circuit_edges, circuit_heads, draw_wiring

# ------------------------------------------------------------------------------------------------------------- curves


def test_curves_show_the_threshold_the_ratio_and_both_circuits(tmp_path):
    figure = draw_curves(both(), caption=True)
    shown = panels(figure)
    assert list(shown) == ["heads: 9 → 2", "edges: 90 → 20"]
    for axes, kind in zip(shown.values(), ("heads", "edges"), strict=True):
        dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert [line.get_ydata()[0] for line in dashed] == [0.9]
        curves = [line for line in axes.lines if len(line.get_xdata()) > 2]
        for line, model, colour in zip(curves, both().models, (DENSE, SPARSE), strict=True):
            curve = getattr(model, kind).prefix.curve
            assert [*line.get_xdata()] == curve.counts and [*line.get_ydata()] == curve.explained
            assert line.get_color() == colour
        assert len(axes.collections) == 2  # the bands
        arrows = [text for text in axes.texts if text.arrow_patch is not None]
        assert [arrow.xy[0] for arrow in arrows] == [getattr(both().models[1], kind).prefix.needed]
    assert shown["heads: 9 → 2"].get_xscale() == "linear"
    assert shown["edges: 90 → 20"].get_xscale() == "symlog" and shown["edges: 90 → 20"].get_xlim()[0] < 0
    words = texts(figure, tmp_path)
    assert "4.5x" in words and "big (dense)" in words and "small (sparse)" in words
    text = " ".join(words)
    for part in ("ioi", "5 prompts", "0.9 of the logit", "EAP-IG, 5 steps", "heads kept, of 12", "of 400"):
        assert part in text


def test_the_spread_over_prompts_is_drawn_below():
    own = [axes for axes in axes_of(draw_curves(both())) if "kept" in axes.get_xlabel()]
    for axes, kind in zip(own, ("heads", "edges"), strict=True):
        for row, model in enumerate(both().models):
            counts = getattr(model, kind).prefix.needed_per_prompt
            lines = [line.get_xdata() for line in axes.lines if line.get_ydata()[0] == -row]
            np.testing.assert_allclose(np.concatenate(lines), np.percentile(counts, [0, 100, 25, 75, 50]))


def test_the_caption_says_that_a_curve_exceeds_the_axis(tmp_path):
    model = circuit("wild", "dense", 4, 20)
    assert model.heads is not None
    prefix = replace(model.heads.prefix, curve=Curve([0, 3, 4, 12], [-2.5, 0.5, 3.0, 1.0]))
    heads = replace(model.heads, prefix=prefix)
    figure = draw_curves(result_of(replace(model, heads=heads)), caption=True)
    assert "from -2.5 to 3, beyond the picture" in whole_text(figure, tmp_path)
    bottom, top = panels(figure)["heads: 4"].get_ylim()
    assert LOWEST - 0.1 < bottom < 0 < 1 < top < HIGHEST + 0.1
    assert "beyond" not in whole_text(draw_curves(both(), caption=True), tmp_path)


def test_the_arrow_points_right_to_a_larger_circuit_and_is_absent_between_equal_ones(tmp_path):
    more = draw_curves(result_of(circuit("a", "dense", 3, 20), circuit("b", "sparse", 5, 20)))
    assert "0.6x" in texts(more, tmp_path) and "1.0x" in texts(more, tmp_path)
    arrows = {t: [x for x in axes.texts if x.arrow_patch is not None] for t, axes in panels(more).items()}
    assert [x.xy[0] for x in arrows["heads: 3 → 5"]] == [5] and arrows["edges: 20 → 20"] == []


# ------------------------------------------------------------------------------------------------------------- wiring


def test_wiring_fills_the_circuit_and_draws_all_its_edges(tmp_path):
    figure = draw_wiring(both(), caption=True)
    assert lines_of(figure) == [6, 6]
    for axes, model, colour in zip(axes_of(figure), both().models, (DENSE, SPARSE), strict=True):
        filled = [line for line in axes.lines if line.get_markerfacecolor() == colour]
        large = max(filled, key=lambda line: line.get_markersize())
        assert {(int(y), int(x)) for x, y in zip(*large.get_data(), strict=True)} == circuit_heads(model)
        assert sum(len(line.get_xdata()) for line in axes.lines) == 12
        # no line leads to a head that is not filled
        filled_places = {(x, y) for line in filled for x, y in zip(*line.get_data(), strict=True)}
        heads = [place for edge in circuit_edges(model) for place in edge[:2] if place.name.startswith("L")]
        assert heads and {(place.x, place.y) for place in heads} <= filled_places
        (drawn,) = axes.collections
        colours = [tuple(c[:3]) for c in drawn.get_edgecolors()]
        assert colours.count(to_rgba(TARGET)[:3]) == 2 and colours[-1] == to_rgba(colour)[:3]
        widths, opacities = drawn.get_linewidths(), drawn.get_edgecolors()[:, 3]
        assert [*widths] == sorted(widths) and [*opacities] == sorted(opacities)
    ends = [(edge.source.name, edge.target.name) for edge in circuit_edges(both().models[0])]
    assert ends[:2] == [("L0H1", "L1H1"), ("embedding", "L0H0")] and ("MLP 0", "logits") in ends
    text = whole_text(figure, tmp_path)
    assert "9 of 12 heads, 90 edges" in text and "L2" in text and "MLP 2" in text and "embedding" in text
    assert "90% of the logit" in text and "5 prompts" in text and "Orange" in text


def test_shared_keys_and_values_are_entered_in_the_middle_of_the_heads_that_read_them():
    edges = circuit_edges(circuit("grouped", "dense", 3, 20, kv_heads=2))
    assert [(edge.target.x, edge.target.y) for edge in edges if edge.source.name.startswith("L")][:3] == [
        (2.5, 1), (2.0, 1), (0.5, 2),
    ]  # fmt: skip


def test_the_caption_says_how_many_edges_of_the_circuit_were_saved(tmp_path):
    text = whole_text(draw_wiring(result_of(circuit("a", "dense", 3, 90)), caption=True), tmp_path)
    assert "90 edges, of which the first 6 were saved" in text
    model = circuit("a", "dense", 3, 2)
    assert lines_of(draw_wiring(result_of(model))) == [2]  # the first two
