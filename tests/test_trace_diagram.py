"""The attribution diagram: it says what the traces say, of any heads, words and clusters, and nothing lies on anything."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Bbox
from odd_tokens import ODD

from edgewise.core.errors import EdgewiseError
from edgewise.core.text import visible
from edgewise.plots.canvas import percent
from edgewise.plots.style import FORMATS, MARK, Picture, save_figure
from edgewise.plots.trace_boxes import MAX_BOXES, choose_boxes, key_share
from edgewise.plots.trace_diagram import draw_trace
from edgewise.plots.trace_heads import MAX_MAPS
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Cluster, Node

PROMPT = ["The", "opposite", "of", '"', "large", '"', "is", '"']
Group = tuple[tuple[int, ...], int, int, int, float]
"""Words that a cluster responds to, where it stands, its first and last layer, its influence."""
GROUPS: list[Group] = [
    ((3, 5, 7), 7, 0, 10, 1.9),
    ((4,), 4, 0, 3, 1.6),
    ((1,), 1, 0, 1, 0.9),
    ((4,), 7, 8, 11, 0.5),
    ((6,), 6, 2, 2, 0.1),
]


def made(
    heads: int,
    kind: str = "sparse",
    tokens: list[str] = PROMPT,
    key: int = 4,
    layers: int = 12,
    width: int = 12,
    stray: int = 0,
    groups: Sequence[Group] = GROUPS,
    **changes: Any,
) -> Trace:
    """A trace in which `heads` heads carry 80 % from the key to the last token, `stray` of which look elsewhere more."""
    t, draw = len(tokens), np.random.default_rng(heads)
    maps = np.tril(draw.random((layers, width, t, t)) ** (4 if kind == "dense" else 40) + np.eye(t)).astype(
        np.float32
    )
    maps /= maps.sum(-1, keepdims=True)
    cells = np.zeros_like(maps)
    carrying = sorted(draw.choice(layers * width, heads, replace=False).tolist(), reverse=True)
    for place, number in enumerate(carrying):
        at = divmod(number, width)
        cells[(*at, t - 1, key)] = 1.0 + 0.1 / (place + 1)
        maps[at][t - 1] = np.eye(t)[0 if place >= heads - stray else key] * 0.7 + 0.3 / t
    cells *= 0.801 / max(cells.sum(), 1e-9)
    rest = [number for number in range(layers * width) if number not in carrying]
    for number in rest if heads else []:
        cells[(*divmod(number, width), t - 1, key)] = 0.199 / len(rest)
    nodes = [Node(f"E_{place}", "token", -1, place, place, word, 0.01) for place, word in enumerate(tokens)]
    clusters = []
    for words, stands, first, last, influence in groups:
        names = [f"{layer}_{word}_{stands}" for layer in range(first, last + 1) for word in words]
        for layer in range(first, last + 1):
            nodes += [
                Node(f"{layer}_{w}_{stands}", "feature", layer, 0, stands, "", 0.1, 1.0, w) for w in words
            ]
        own = stands in words
        names += [f"E_{word}" for word in words] * own
        label = tokens[words[0]].strip() + ("" if own else f" at {tokens[stands].strip()}")
        clusters.append(Cluster(label, names, first, last, influence))
    origins = [0.2 / max(t - 1, 1)] * t
    origins[key] = 0.8
    values = {
        "model": "gpt2" if kind == "dense" else "runs/gpt2-sparse",
        "kind": kind,
        "transcoder": "gpt2",
        "prompt": " ".join(tokens),
        "tokens": [*tokens],
        "ids": [*range(t)],
        "logits": [(" small", 0.62)],
        "nodes": nodes,
        "clusters": clusters,
        "strengths": [[0.2] * len(clusters) for _ in range(len(clusters) + 1)],
        "origins": origins,
        "metrics": {"influence_of_errors": 0.23},
        "head_shares": np.zeros((0, layers, width), dtype=np.float32),
        "cells": cells,
        "maps": maps,
    }
    not_drawn = {field.name: [] for field in fields(Trace)}
    return Trace(**(not_drawn | values | changes))


def pair(dense: int = 12, twin: int = 3, **how: Any) -> list[Trace]:
    return [made(dense, "dense", **how), made(twin, **how)]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def colour_of(figure: Figure, said: str) -> Any:
    return next(text.get_color() for text in figure.axes[0].texts if text.get_text() == said)


# ---------------------------------------------------------------------------------------------------------- what it says


def test_the_figure_of_the_paper():
    figure = draw_trace(pair(41, 5))
    said = texts(figure)
    assert isinstance(figure, Picture) and figure.get_figwidth() == 7
    assert len(figure.axes[0].images) == 41 + 5
    for text in (
        "41 of 144 heads carry 80%",
        "5 of 144 heads carry 80% of it",
        "GPT2",
        "Sparse GPT2",
        "K",
        "Q",
    ):
        assert said.count(text) == 1
    assert colour_of(figure, "All heads map key pos 5 to query pos 8") == MARK
    assert colour_of(figure, "modulated at 80% by") == MARK
    heads = [f"L{layer}-H{head}" for layer, head, _ in made(5).heads_at(0.8, key=4, query=7)]
    assert [text for text in said if text in heads] == heads  # most important first
    for text in ("opposite", "layers 0-1", "layers 0-3", "layers 0-10", "small", "output, 62%"):
        assert text in said
    assert [text for text in said if text.isdigit()] == [*"12345678"]
    large = [text for text in figure.axes[0].texts if text.get_text() == "large"]
    assert len(large) == 2 and all(text.get_color() == MARK for text in large)  # the word and its cluster
    caption = " ".join(said[-7:])
    for part in (
        "80% of what attention brings from key 5 “large” to query 8",
        "Prompt (8 tokens): “The opposite",
    ):
        assert part in caption
    for part in (
        "3 of 5 clusters",
        "80% of the output “small” began",
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
def test_the_sentence_is_red_only_if_all_heads_look_there(heads, stray, sentence):
    figure = draw_trace([made(heads, stray=stray)], key=4)
    said = f"{sentence} key pos 5 to query pos 8"
    assert (colour_of(figure, said) == MARK) == (heads > 0 and stray == 0)
    filled, framed = figure.axes[0].collections[1:]
    assert (len(filled.get_paths()), len(framed.get_paths())) == (heads - stray, stray)
    assert len(figure.axes[0].images) == heads


def test_a_tie_or_a_row_of_zeros_is_no_map():
    trace = made(1)
    ((layer, head, _),) = trace.heads_at(0.8, key=4, query=7)
    for row, maps in ((np.full(8, 0.125), False), (np.zeros(8), False), (np.eye(8)[4] * 0.1, True)):
        weights = trace.maps.copy()
        weights[layer, head, 7] = row
        assert (
            "The only head maps key pos 5 to query pos 8" in texts(draw_trace([replace(trace, maps=weights)]))
        ) == maps


def test_the_cell_lies_at_the_query_and_the_key():
    axes = draw_trace([made(1)]).axes[0]
    x0, x1, y1, y0 = axes.images[0].get_extent()
    (cell,) = axes.collections[1].get_paths()
    box, side = cell.get_extents(), (x1 - x0) / 8
    np.testing.assert_allclose(
        [box.x0, box.y0, box.x1, box.y1], [x0 + 4 * side, y0 + 7 * side, x0 + 5 * side, y1]
    )
    assert tuple(axes.collections[1].get_facecolor()[0]) == to_rgba(MARK)


def test_a_key_can_be_given_and_is_else_that_of_the_last_trace():
    dense, twin = made(9, "dense", key=1), made(2, key=4)
    assert "Both heads map key pos 5 to query pos 8" in texts(draw_trace([dense, twin]))
    said = texts(draw_trace([dense, twin], key=1, share=0.5))
    assert {"6 of 144 heads carry 50%", "No head carries anything from key pos 2 to query pos 8"} <= {*said}


def test_one_trace_has_no_wall():
    for kind, title in (("dense", "GPT2"), ("sparse", "Sparse GPT2")):
        figure = draw_trace([made(3, kind, model=title.lower().replace("sparse gpt2", "runs/gpt2-sparse"))])
        assert len(figure.axes[0].images) == 3 and title in texts(figure)
        assert (
            sum(
                isinstance(patch, FancyBboxPatch) and patch.get_width() > 400
                for patch in figure.axes[0].patches
            )
            == 1
        )


def test_very_many_heads_are_cut_and_counted():
    figure = draw_trace([made(90, "dense"), made(2)])
    assert len(figure.axes[0].images) == MAX_MAPS + 2
    assert {"90 of 144 heads carry 80%", f"from key pos 5 to query pos 8 ({MAX_MAPS} shown)"} <= {
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
        ([made(1)] * 3, None, "one trace or two, not 3"),
        (
            [made(1), made(1, prompt="another\none")],
            None,
            "of different prompts: “The opposite .* and “another",
        ),
        (
            [made(1), made(1, tokens=[*PROMPT[:-1], "'"], prompt=" ".join(PROMPT))],
            None,
            "read different tokens",
        ),
        ([made(1)], 7, "no key 7 to trace to the last position, 7: keys go from 0 to 6"),
        ([made(1)], 8, "no key 8"),
        ([made(1)], -1, "no key -1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(traces, key, sentence):
    with pytest.raises(EdgewiseError, match=sentence) as error:
        draw_trace(traces, key)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------------------------- clusters


def test_the_few_clusters_that_matter_and_the_key_of_course():
    assert [box.lines[0] for box in choose_boxes(made(3), 4)] == ['"', "large", "opposite"]
    assert [box.of_key for box in choose_boxes(made(3), 4)] == [False, True, False]
    weak = choose_boxes(made(3), 6)
    assert [box.lines[0] for box in weak] == ['"', "large", "opposite", "is"] and weak[-1].of_key
    even = [(((place,), place, 0, 0, 1.0)) for place in range(8)]
    assert len(choose_boxes(made(3, groups=even), 7)) == MAX_BOXES
    elsewhere = choose_boxes(made(3, groups=[((4,), 7, 3, 5, 1.0)]), 4)
    assert elsewhere[0].lines == ["large", 'at "', "layers 3-5"] and elsewhere[0].words == [4]
    assert elsewhere[1].of_key and not elsewhere[1].lines  # the arrow begins at the word


def test_the_arrow_counts_all_the_words_that_its_cluster_joins():
    trace = made(3, origins=[0.1, 0.1, 0.1, 0.05, 0.4, 0.08, 0.1, 0.07])
    assert key_share(trace, 4) == 0.4 and key_share(trace, 3) == pytest.approx(0.2)
    assert key_share(replace(trace, clusters=[]), 3) == 0.05
    figure = draw_trace([trace], key=3)
    assert "modulated at 20% by" in texts(figure) and "(positions 4, 6, 8)" in " ".join(texts(figure))


def test_an_arrow_begins_at_the_word_if_it_has_no_cluster():
    for groups in ([], [((4,), 7, 3, 5, 1.0)]):
        figure = draw_trace([made(3, groups=groups, strengths=[[0.0] * len(groups)])])
        red = [patch for patch in figure.axes[0].patches if isinstance(patch, PathPatch)]
        red = [patch for patch in red if patch.get_edgecolor() == to_rgba(MARK)]
        assert len(red) == 3 and "modulated at 80% by" in texts(figure)
        assert "grey arrows" not in " ".join(texts(figure))


def test_several_outputs_are_named_by_the_likeliest():
    figure = draw_trace([made(2, logits=[(" tiny", 0.2), (" small", 0.5), (" \n", 0.1)])])
    assert "output, 50%, 2 more" in texts(figure) and "small" in texts(figure)


# ------------------------------------------------------------------------------------------------------------ how it looks


def test_what_was_saved_draws_the_same_bytes(tmp_path):
    traces = pair(7, 3, tokens=ODD, key=7, groups=[((5,), 14, 0, 3, 1.0), ((7,), 7, 0, 3, 1.0)])
    figure = draw_trace(traces)
    first = save_figure(figure, tmp_path / "first")
    for place, trace in enumerate(traces):
        trace.save(tmp_path / str(place))
    again = draw_trace([Trace.load(tmp_path / str(place)) for place in range(2)])
    (second,) = save_figure(again, tmp_path / "second", ["svg"])
    assert first[0].read_bytes() == second.read_bytes()
    assert [path.suffix[1:] for path in first] == [*FORMATS]
    assert all(0 < path.stat().st_size < 500_000 for path in first)
    root = ET.fromstring(first[0].read_text())
    selectable = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for token in ODD:
        assert visible(token) in selectable


def drawn(figure: Figure) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray, list[Any]]:
    """As drawn, in points from below: texts, the places (left, bottom, right, top) of texts, maps and frames, and lines."""
    figure.set_dpi(200)
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes, points = figure.axes[0], 72 / 200
    frames = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    bounds = [frame.get_path().transformed(frame.get_transform()).get_extents() for frame in frames]
    places = [
        np.array([box.extents for box in boxes]).reshape(-1, 4) * points
        for boxes in (
            [text.get_window_extent(renderer) for text in axes.texts],
            [image.get_window_extent(renderer) for image in axes.images],
            bounds,
        )
    ]
    paths = [p.get_transform().transform_path(p.get_path()) for p in axes.patches if isinstance(p, PathPatch)]
    lines = [path.to_polygons(closed_only=False)[0] * np.array(points) for path in paths]
    return texts(figure), places[0], places[1], places[2], lines


def on_each_other(some: np.ndarray, others: np.ndarray, slack: float) -> list[tuple[int, int]]:
    """Pairs of boxes that share more than a rim."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    return [
        (int(i), int(j)) for i, j in np.argwhere((high - low > slack).all(-1)) if some is not others or i < j
    ]


def check(figure: Figure) -> None:
    said, of_texts, of_maps, of_frames, lines = drawn(figure)
    width, height = figure.get_size_inches() * 72
    assert (of_texts[:, :2] >= 0).all() and (of_texts[:, 2:] <= [width, height]).all()
    assert not [(said[i], said[j]) for i, j in on_each_other(of_texts, of_texts, 0.5)]
    assert not on_each_other(of_maps, of_maps, 0)
    names = [said[i] for i, _ in on_each_other(of_texts, of_maps, 1.5)]
    assert all(re.fullmatch(r"L\d+-H\d+", name) for name in names)
    for boxes in (of_texts, of_maps):  # inside or outside of a panel or a box, not on its edge
        for i, j in on_each_other(boxes, of_frames, 0.5):
            inside = (boxes[i, :2] > of_frames[j, :2]).all() and (boxes[i, 2:] < of_frames[j, 2:]).all()
            assert inside, (boxes[i], of_frames[j])
    for text, (left, bottom, right, top) in zip(said, of_texts, strict=True):
        within = Bbox([[left + 1, bottom + 1.2], [right - 1, top - 1.2]])
        assert not any(Path(line).intersects_bbox(within, filled=False) for line in lines), text


WORDS = [f"{word}{place}" for place in range(9) for word in ("a", "committee", "of", "extraordinarily", "W")]
LONG = [
    ("W" * 60, 0),
    ("an endless label of a cluster that somebody wrote", 1),
    ("i", 2),
    ("מילה ארוכה מאוד", 3),
    ("", 4),
]
CASES: dict[str, list[Trace]] = {
    **{
        f"{dense} dense, {twin} twin": pair(dense, twin)
        for dense, twin in ((0, 0), (1, 1), (6, 6), (7, 7), (16, 12))
    },
    "60 dense, 16 twin": pair(60, 16, stray=1),
    "one of many heads": [made(33, "dense")],
    "two tokens": pair(9, 2, tokens=["W", "W"], key=0, groups=[((0, 1), 0, 0, 1, 1.0)]),
    "40 tokens, key first": pair(
        20, 5, tokens=WORDS[:40], key=0, groups=[((0,), 0, 0, 1, 1.0), ((1,), 39, 0, 1, 1.0)]
    ),
    "40 tokens, key last": pair(
        8, 4, tokens=WORDS[:40], key=38, groups=[((w,), w, 0, 9, 1.0) for w in (1, 3, 38, 37, 36)]
    ),
    "140 tokens": pair(3, 2, tokens=(WORDS * 4)[:140], key=99, layers=1, width=4, groups=[]),
    "odd tokens": pair(
        12, 4, tokens=ODD, key=7, groups=[((w,), s, 0, 3, 1.0) for w, s in ((7, 7), (5, 6), (2, 14), (0, 9))]
    ),
    "arrow from the first word": pair(3, 3, key=0, groups=[((w,), w, 0, 1, 1.0) for w in (1, 2, 4, 6)]),
    "arrow from the last word": pair(
        3, 3, key=6, groups=[((w,), w, 0, 1, 1.0) for w in (0, 1, 2, 4)], origins=[0.1249] * 8
    ),
    "alone, no clusters": [made(1, groups=[], strengths=[])],
    "long labels": [
        made(
            3,
            clusters=[Cluster(text, [f"E_{w}"], 0, 11, 1.0) for text, w in LONG],
            strengths=[[0.2] * 5],
            model="m" * 90,
        )
    ],
    "sure": pair(
        20, 3, key=0, groups=[((w,), w, 0, 0, 1.0) for w in (0, 1, 2, 4, 6)], origins=[0.999] + [1e-4] * 7
    ),
    "sure, at the end": pair(
        20, 3, key=6, groups=[((w,), w, 0, 0, 1.0) for w in (6, 4, 3, 2, 0)], origins=[1e-4] * 6 + [0.999, 0]
    ),
}


@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_nothing_lies_on_anything(case):
    check(draw_trace(CASES[case], key=4 if case.startswith("0") else None))


def test_of_a_long_prompt_the_tokens_where_most_began_are_shown():
    said = texts(draw_trace(CASES["140 tokens"]))
    shown = [int(text) for text in said if text.isdigit()]
    assert {100, 140} <= {*shown} and len(shown) == len({*shown}) < 50
    assert f"Shown are the {len(shown)} tokens" in " ".join(said) and "Boxes" not in " ".join(said)
