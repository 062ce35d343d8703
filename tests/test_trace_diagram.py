"""The attribution diagram says what the traces say, of any heads, words and clusters."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_traces import PROMPT, make_pair, make_trace, texts
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon

from edgewise.core.errors import EdgewiseError
from edgewise.plots.canvas import percent
from edgewise.plots.style import MARK, Picture
from edgewise.plots.trace_boxes import MAX_BOXES, choose_boxes
from edgewise.plots.trace_diagram import draw_trace
from edgewise.plots.trace_effects import draw_effects
from edgewise.plots.trace_heads import MAX_MAPS
from edgewise.tracing.schema import Intervention
from edgewise.tracing.word_clusters import word_clusters


def colour_of(figure: Figure, content: str) -> Any:
    return next(text.get_color() for text in figure.axes[0].texts if text.get_text() == content)


# ---------------------------------------------------------------------------------------------------------- what it says


def test_the_figure_of_the_paper():
    figure = draw_trace(make_pair(41, 5), caption=True)
    shown = texts(figure)
    assert isinstance(figure, Picture) and figure.get_figwidth() == 7
    assert len(figure.axes[0].images) == 144 + 5  # a wall of all heads of the dense model
    for text in (
        "41 of 144 heads carry 80%",
        "5 of 144 heads carry 80% of it",
        "GPT2",
        "Sparse GPT2",
        "K",
        "Q",
    ):
        assert shown.count(text) == 1
    assert colour_of(figure, "All heads map key pos 5 to query pos 8") == MARK
    assert colour_of(figure, "modulated at 80% by") == MARK
    heads = [f"L{layer}-H{head}" for layer, head, _ in make_trace(5).heads_at(0.8, key=4, query=7)]
    assert [text for text in shown if text in heads] == heads  # most important first
    for text in (
        "opposite",
        "layers 0-1",
        "layers 0-11",
        "brackets",
        "layers 0-10",
        "small",
        "layer 12, 62%",
    ):
        assert text in shown
    assert [text for text in shown if text.isdigit()] == [*"12345678"]
    large = [text for text in figure.axes[0].texts if text.get_text() == "large"]
    assert len(large) == 2 and all(text.get_color() == MARK for text in large)  # the word and its cluster
    caption = " ".join(shown[-7:])
    for part in (
        "80% of the attribution through attention from key 5 “large” to query 8",
        "Prompt (8 tokens): “The opposite",
    ):
        assert part in caption
    for part in (
        "3 of 4 words",
        "carry 80% of the attribution through attention from “large”",
        "23% of all",
        "Transcoder: gpt2",
        "dark blue 1",
    ):
        assert part in caption


@pytest.mark.parametrize(
    ("heads", "stray", "sentence"),
    [
        (5, 0, "All heads map"),
        (2, 0, "Both heads map"),
        (1, 0, "The only head maps"),
        (1, 1, "The only head does not map"),
        (4, 1, "3 of 4 heads map"),
        (4, 3, "1 of 4 heads maps"),
        (4, 4, "None of 4 heads maps"),
        (0, 0, "No head carries anything from"),
    ],
)
def test_the_sentence_is_red_only_if_all_heads_map_the_key(heads, stray, sentence):
    figure = draw_trace([make_trace(heads, stray=stray)], key=4)
    content = f"{sentence} key pos 5 to query pos 8"
    assert (colour_of(figure, content) == MARK) == (heads > 0 and stray == 0)
    filled, framed = figure.axes[0].collections[1:]
    assert (len(filled.get_paths()), len(framed.get_paths())) == (heads - stray, stray)
    assert len(figure.axes[0].images) == heads


def test_a_tie_or_a_query_without_weights_does_not_map_the_key():
    trace = make_trace(1)
    ((layer, head, _),) = trace.heads_at(0.8, key=4, query=7)
    for row, maps in ((np.full(8, 0.125), False), (np.zeros(8), False), (np.eye(8)[4] * 0.1, True)):
        weights = trace.maps.copy()
        weights[layer, head, 7] = row
        assert (
            "The only head maps key pos 5 to query pos 8" in texts(draw_trace([replace(trace, maps=weights)]))
        ) == maps


def test_the_marked_cell_is_at_the_query_and_the_key():
    axes = draw_trace([make_trace(1)]).axes[0]
    x0, x1, y1, y0 = axes.images[0].get_extent()
    (cell,) = axes.collections[1].get_paths()
    box, side = cell.get_extents(), (x1 - x0) / 8
    np.testing.assert_allclose(
        [box.x0, box.y0, box.x1, box.y1], [x0 + 4 * side, y0 + 7 * side, x0 + 5 * side, y1]
    )
    assert tuple(axes.collections[1].get_facecolor()[0]) == to_rgba(MARK)


def test_the_key_is_by_default_the_main_key_of_the_last_trace():
    dense, twin = make_trace(9, "dense", key=1), make_trace(2, key=4)
    assert "Both heads map key pos 5 to query pos 8" in texts(draw_trace([dense, twin]))
    shown = texts(draw_trace([dense, twin], key=1, share=0.5))
    assert {"6 of 144 heads carry 50%", "No head carries anything from key pos 2 to query pos 8"} <= {*shown}


def test_a_copied_answer_is_explained_by_where_it_stands_unless_heads_carry_little_from_there():
    words = ["Mary", "and", "John", ":", "John", "to"]
    trace = make_trace(2, tokens=words, key=2, groups=[], logits=[(" Mary", 0.99)])
    largest = trace.cells[:, :, -1, 2].sum()
    assert trace.main_key == 2
    trace.cells[5, 1, -1, 0] = 0.6 * largest
    assert trace.main_key == 0
    trace.cells[5, 1, -1, 0] = 0.4 * largest
    assert trace.main_key == 2


def test_one_trace_has_one_panel():
    for kind, title in (("dense", "GPT2"), ("sparse", "Sparse GPT2")):
        figure = draw_trace(
            [make_trace(3, kind, model=title.lower().replace("sparse gpt2", "runs/gpt2-sparse"))]
        )
        assert len(figure.axes[0].images) == 3 and title in texts(figure)
        assert (
            sum(
                isinstance(patch, FancyBboxPatch) and patch.get_width() > 400
                for patch in figure.axes[0].patches
            )
            == 1
        )


def test_many_needed_heads_are_outlined_in_a_wall_of_all():
    figure = draw_trace([make_trace(90, "dense"), make_trace(2)])
    assert len(figure.axes[0].images) == 144 + 2
    squares = [len(c.get_paths()) for c in figure.axes[0].collections]
    assert squares[:2] == [144, 90]  # all, and those needed


def test_of_a_large_model_the_needed_heads_are_cut_and_counted():
    figure = draw_trace([make_trace(90, "dense", layers=26), make_trace(2, layers=26)])
    assert len(figure.axes[0].images) == MAX_MAPS + 2
    assert {"90 of 312 heads carry 80%", f"from key pos 5 to query pos 8 ({MAX_MAPS} shown)"} <= {
        *texts(figure)
    }


def test_shares_are_never_rounded_away():
    assert [percent(x) for x in (0, 1e-4, 0.005, 0.5, 0.994, 0.9991, 1)] == [
        "0%",
        "<1%",
        "0%",
        "50%",
        "99%",
        ">99%",
        "100%",
    ]


@pytest.mark.parametrize(
    ("traces", "key", "sentence"),
    [
        ([], None, "one trace or two, not 0"),
        ([make_trace(1)] * 3, None, "one trace or two, not 3"),
        (
            [make_trace(1), make_trace(1, prompt="another\none")],
            None,
            "of different prompts: “The opposite .* and “another",
        ),
        (
            [make_trace(1), make_trace(1, tokens=[*PROMPT[:-1], "'"], prompt=" ".join(PROMPT))],
            None,
            "read different tokens",
        ),
        ([make_trace(1)], 7, "no key 7 to trace to the last position, 7: keys go from 0 to 6"),
        ([make_trace(1)], 8, "no key 8"),
        ([make_trace(1)], -1, "no key -1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(traces, key, sentence):
    with pytest.raises(EdgewiseError, match=sentence) as error:
        draw_trace(traces, key)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------------------------- clusters


def test_boxes_are_the_most_influential_words_and_the_key():
    assert [box.lines[0] for box in choose_boxes(make_trace(3), 4)] == ["large", "brackets", "opposite"]
    assert [box.of_key for box in choose_boxes(make_trace(3), 4)] == [True, False, False]
    weak = choose_boxes(make_trace(3), 6)
    assert [box.lines[0] for box in weak] == ["large", "brackets", "opposite", "is"] and weak[-1].of_key
    even = [((i,), i, 0, 0, 1.0) for i in range(8)]
    words = [*"abcdefgh"]
    assert len(choose_boxes(make_trace(3, groups=even, tokens=words), 7)) == MAX_BOXES
    (nothing_there, room) = choose_boxes(make_trace(3, groups=[((1,), 7, 3, 5, 1.0)]), 4)
    assert nothing_there.lines == ["opposite", "layers 3-5"] and nothing_there.words == [1]
    assert room.of_key and not room.lines  # the arrow ends at the word


def test_clusters_of_one_word_are_merged_and_quotation_marks_are_brackets():
    groups = [((0,), 0, 0, 0, 0.4), ((0,), 7, 3, 5, 0.3), ((3, 5, 7), 7, 1, 2, 0.2), ((3,), 3, 0, 0, 0.1)]
    the, brackets = word_clusters(make_trace(3, groups=groups, strengths=[[0.1, 0.2, 0.3, 0.05]]))
    assert (the.label, the.layers, the.words, the.positions) == ("The", "layers 0-5", [0], [0, 7])
    assert the.influence == pytest.approx(0.7) and the.direct == pytest.approx(0.3)
    assert (brackets.label, brackets.layers, brackets.words) == ("brackets", "layers 0-2", [3, 5, 7])


def test_the_arrow_is_the_share_that_the_drawn_heads_carry_and_no_token_hides_its_own():
    trace = make_trace(3, origins=[0.3, 0.1, 0.1, 0.05, 0.2, 0.08, 0.1, 0.07])
    shown = texts(draw_trace([trace], share=0.5))
    carried = sum(share for _, _, share in trace.heads_at(0.5, 4, 7))
    assert f"modulated at {percent(carried)} by" in shown
    assert [text for text in shown if text.endswith("%") and text[0].isdigit()][-8:] == [
        "30%", "10%", "10%", "5%", "20%", "8%", "10%", "7%",
    ]  # fmt: skip


def test_the_arrow_points_from_the_output_to_the_key():
    figure = draw_trace([make_trace(3)])
    heads = [
        p for p in figure.axes[0].patches if isinstance(p, Polygon) and p.get_facecolor() == to_rgba(MARK)
    ]
    (tip, *base) = heads[0].get_xy()[:3]
    assert tip[1] > max(y for _, y in base)  # downward: points are counted from the top


def test_the_arrow_ends_at_the_word_if_it_has_no_cluster():
    for groups in ([], [((1,), 7, 3, 5, 1.0)]):
        figure = draw_trace([make_trace(3, groups=groups, strengths=[[0.0] * len(groups)])], caption=True)
        red = [patch for patch in figure.axes[0].patches if isinstance(patch, PathPatch)]
        red = [patch for patch in red if patch.get_edgecolor() == to_rgba(MARK)]
        assert len(red) == 3 and "modulated at 80% by" in texts(figure)
        assert "grey arrows" not in " ".join(texts(figure))


def test_the_caption_is_drawn_only_if_asked_for():
    assert not any("Prompt (8 tokens)" in text for text in texts(draw_trace([make_trace(3)])))


def test_several_outputs_are_named_by_the_most_likely():
    figure = draw_trace([make_trace(2, logits=[(" tiny", 0.2), (" small", 0.5), (" \n", 0.1)])])
    assert "layer 12, 50%, 2 more" in texts(figure) and "small" in texts(figure)


def test_effects_are_drawn_with_their_correlations_and_parts():
    tested = [
        Intervention(
            "E_7_4",
            1.0,
            1.0,
            -2.0,
            "token",
            replaced=-1.5,
            values=-1.0,
            attention=-2.0,
            norms=0.5,
            errors=0.5,
        ),
        Intervention("L3H1", 1.0, 1.0, 2.0, "head", replaced=1.0, values=2.0),
        Intervention("0_12_7", 1, 1, -3, "feature", replaced=-2.0, attention=-3.0, moved=[("L4H1", -2.5)]),
    ]
    metrics = {"feature_correlation_replaced": 0.84}
    trace = make_trace(3, interventions=tested, metrics=metrics)
    figure = draw_effects([trace], caption=True)
    scatter, bars = figure.axes
    assert [text.get_text() for text in (scatter.get_legend() or pytest.fail("no legend")).get_texts()] == [
        "1 features, r = 0.84", "1 heads", "1 tokens",
    ]  # fmt: skip
    labels = [label.get_text() for label in bars.get_yticklabels()]
    assert labels == ["L3H1", "“large” (5)", 'L0/12 at “"” (8) → L4H1']  # the largest above
    assert bars.get_xlabel() == "change of log odds of small"
    rectangles: Any = bars.patches
    width = {bar.get_facecolor(): 0.0 for bar in rectangles}
    for bar in rectangles:
        width[bar.get_facecolor()] += bar.get_width()
    assert sum(width.values()) == pytest.approx(-2.0 + 2.0 - 3.0)
    with pytest.raises(EdgewiseError, match="hold no interventions"):
        draw_effects(make_pair())
