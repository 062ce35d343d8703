"""Layout of the attribution diagram: nothing overlaps, whatever the words and clusters; saved traces draw the same."""

import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from made_traces import make_pair, make_trace, texts
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Bbox
from odd_tokens import ODD

from edgewise.core.text import visible
from edgewise.plots.style import FORMATS, save_figure
from edgewise.plots.trace_diagram import draw_trace
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Cluster


def test_saved_traces_draw_the_same_bytes(tmp_path):
    traces = make_pair(7, 3, tokens=ODD, key=7, groups=[((5,), 14, 0, 3, 1.0), ((7,), 7, 0, 3, 1.0)])
    figure = draw_trace(traces)
    first = save_figure(figure, tmp_path / "first")
    for i, trace in enumerate(traces):
        trace.save(tmp_path / str(i))
    again = draw_trace([Trace.load(tmp_path / str(i)) for i in range(2)])
    (second,) = save_figure(again, tmp_path / "second", ["svg"])
    assert first[0].read_bytes() == second.read_bytes()
    assert [path.suffix[1:] for path in first] == [*FORMATS]
    assert all(0 < path.stat().st_size < 500_000 for path in first)
    root = ET.fromstring(first[0].read_text())
    selectable = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for token in ODD:
        assert visible(token) in selectable


def drawn(figure: Figure) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray, list[Any]]:
    """As drawn, in points from below: texts, the bounds (left, bottom, right, top) of texts, maps and frames, and lines."""
    figure.set_dpi(200)
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes, points = figure.axes[0], 72 / 200
    frames = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    bounds = [frame.get_path().transformed(frame.get_transform()).get_extents() for frame in frames]
    bounds_of_kind = [
        np.array([box.extents for box in boxes]).reshape(-1, 4) * points
        for boxes in (
            [text.get_window_extent(renderer) for text in axes.texts],
            [image.get_window_extent(renderer) for image in axes.images],
            bounds,
        )
    ]
    paths = [p.get_transform().transform_path(p.get_path()) for p in axes.patches if isinstance(p, PathPatch)]
    lines = [path.to_polygons(closed_only=False)[0] * np.array(points) for path in paths]
    return texts(figure), bounds_of_kind[0], bounds_of_kind[1], bounds_of_kind[2], lines


def overlaps(some: np.ndarray, others: np.ndarray, slack: float) -> list[tuple[int, int]]:
    """Pairs of boxes that share more than a rim."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    return [
        (int(i), int(j)) for i, j in np.argwhere((high - low > slack).all(-1)) if some is not others or i < j
    ]


def check_layout(figure: Figure) -> None:
    shown, of_texts, of_maps, of_frames, lines = drawn(figure)
    width, height = figure.get_size_inches() * 72
    assert (of_texts[:, :2] >= 0).all() and (of_texts[:, 2:] <= [width, height]).all()
    assert not [(shown[i], shown[j]) for i, j in overlaps(of_texts, of_texts, 0.5)]
    assert not overlaps(of_maps, of_maps, 0)
    names = [shown[i] for i, _ in overlaps(of_texts, of_maps, 1.5)]
    assert all(re.fullmatch(r"L\d+-H\d+", name) for name in names)
    for boxes in (of_texts, of_maps):  # inside or outside of a panel or a box, not on its edge
        for i, j in overlaps(boxes, of_frames, 0.5):
            inside = (boxes[i, :2] > of_frames[j, :2]).all() and (boxes[i, 2:] < of_frames[j, 2:]).all()
            assert inside, (boxes[i], of_frames[j])
    for text, (left, bottom, right, top) in zip(shown, of_texts, strict=True):
        within = Bbox([[left + 1, bottom + 1.2], [right - 1, top - 1.2]])
        assert not any(Path(line).intersects_bbox(within, filled=False) for line in lines), text


WORDS = [f"{word}{i}" for i in range(9) for word in ("a", "committee", "of", "extraordinarily", "W")]
LONG = [
    ("W" * 60, 0),
    ("an endless label of a cluster that somebody wrote", 1),
    ("i", 2),
    ("מילה ארוכה מאוד", 3),
    ("", 4),
]
CASES: dict[str, list[Trace]] = {
    **{
        f"{dense} dense, {twin} twin": make_pair(dense, twin)
        for dense, twin in ((0, 0), (1, 1), (6, 6), (7, 7), (16, 12))
    },
    "60 dense, 16 twin": make_pair(60, 16, stray=1),
    "one of many heads": [make_trace(33, "dense")],
    "two tokens": make_pair(9, 2, tokens=["W", "W"], key=0, groups=[((0, 1), 0, 0, 1, 1.0)]),
    "40 tokens, key first": make_pair(
        20, 5, tokens=WORDS[:40], key=0, groups=[((0,), 0, 0, 1, 1.0), ((1,), 39, 0, 1, 1.0)]
    ),
    "40 tokens, key last": make_pair(
        8, 4, tokens=WORDS[:40], key=38, groups=[((w,), w, 0, 9, 1.0) for w in (1, 3, 38, 37, 36)]
    ),
    "140 tokens": make_pair(3, 2, tokens=(WORDS * 4)[:140], key=99, layers=1, width=4, groups=[]),
    "odd tokens": make_pair(
        12, 4, tokens=ODD, key=7, groups=[((w,), s, 0, 3, 1.0) for w, s in ((7, 7), (5, 6), (2, 14), (0, 9))]
    ),
    "arrow from the first word": make_pair(3, 3, key=0, groups=[((w,), w, 0, 1, 1.0) for w in (1, 2, 4, 6)]),
    "arrow from the last word": make_pair(
        3, 3, key=6, groups=[((w,), w, 0, 1, 1.0) for w in (0, 1, 2, 4)], origins=[0.1249] * 8
    ),
    "alone, no clusters": [make_trace(1, groups=[], strengths=[])],
    "long labels": [
        make_trace(
            3,
            clusters=[Cluster(text, [f"E_{w}"], 0, 11, 1.0) for text, w in LONG],
            strengths=[[0.2] * 5],
            model="m" * 90,
        )
    ],
    "sure": make_pair(
        20, 3, key=0, groups=[((w,), w, 0, 0, 1.0) for w in (0, 1, 2, 4, 6)], origins=[0.999] + [1e-4] * 7
    ),
    "sure, at the end": make_pair(
        20, 3, key=6, groups=[((w,), w, 0, 0, 1.0) for w in (6, 4, 3, 2, 0)], origins=[1e-4] * 6 + [0.999, 0]
    ),
}


@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_nothing_overlaps(case):
    check_layout(draw_trace(CASES[case], key=4 if case.startswith("0") else None, caption=True))


def test_a_long_prompt_shows_the_tokens_with_the_largest_attribution():
    drawn_texts = texts(draw_trace(CASES["140 tokens"], caption=True))
    numbers = [int(text) for text in drawn_texts if text.isdigit()]
    assert {100, 140} <= {*numbers} and len(numbers) == len({*numbers}) < 50
    caption = " ".join(drawn_texts)
    assert f"Shown are the {len(numbers)} tokens" in caption and "Boxes" not in caption
