"""The arguments that every plot function takes: ax, title, names, colours, cmap, width, theme, caption."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hand_made_results import both, flow_of
from made_traces import make_trace
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from test_map_grid import grid

from edgewise.core.errors import EdgewiseError
from edgewise.flow.result import Flows
from edgewise.plots.attention_maps import draw_maps
from edgewise.plots.curves import draw_curves
from edgewise.plots.flow import draw_flow
from edgewise.plots.look import SCALES
from edgewise.plots.run import draw_run
from edgewise.plots.trace_diagram import draw_trace
from edgewise.plots.trace_effects import draw_effects
from edgewise.plots.wiring import draw_wiring
from edgewise.tracing.schema import Intervention
from edgewise.training.sparsify.result import SparsifyResult


def run() -> SparsifyResult:
    summary = {
        "model": "a_model",
        "recipe": "small",
        "seed": 0,
        "density": 0.1,
        "dense_ce": 2.0,
        "tolerance": 0.01,
    }
    steps = [{"tokens": 1e5 * i, "expected_density": 0.9**i, "beta": 0.1 * i} for i in range(1, 9)]
    checks = [{"tokens": 1e5 * i, "held_out_ce": 2.0, "density": 0.9**i, "delta_ce": 0.02} for i in (4, 8)]
    return SparsifyResult(summary | {"delta_ce": 0.02}, Path(), log=steps + checks)


def traces() -> list[Any]:
    tested = [Intervention("L3H1", 1.0, 1.0, 2.0, "head", replaced=1.0, values=2.0)] * 3
    return [make_trace(3, model=name, kind=name, interventions=tested) for name in ("dense", "sparse")]


FIGURES: dict[str, tuple[Any, Any, int]] = {
    "maps": (draw_maps, lambda: grid(5, 2, 8), 2),
    "curves": (draw_curves, both, 2),
    "wiring": (draw_wiring, both, 2),
    "flow": (draw_flow, lambda: Flows([[flow_of(["a", "b"], kind)] for kind in ("dense", "sparse")]), 2),
    "run": (draw_run, run, 1),
    "trace": (draw_trace, traces, 2),
    "effects": (draw_effects, traces, 2),
}
every_figure = pytest.mark.parametrize("which", FIGURES)


def drawn(which: str, **look: Any) -> Figure:
    draw, made, _ = FIGURES[which]
    return draw(made(), **look)


def words(figure: Figure) -> str:
    return " ".join(artist.get_text() for artist in figure.findobj(Text) if artist.get_text())


@every_figure
def test_titles_and_names_are_arguments_and_there_is_no_caption_unless_asked_for(which: str):
    names = ["first one", "second one"][: FIGURES[which][2]]
    named = words(drawn(which, names=names)).replace("\n", " ")
    assert "My own title" in words(drawn(which, title="My own title")) and all(
        name in named for name in names
    )
    plain, explained = words(drawn(which, title="")), words(drawn(which, title="", caption=True))
    assert len(explained) > len(plain) + 40


@every_figure
def test_every_figure_works_in_a_subplot(which: str):
    figure, panels = plt.subplots(1, 2, figsize=(12, 5))
    try:
        panels[0].plot([1, 2], [3, 4])
        assert drawn(which, ax=panels[1]) is figure
        FigureCanvasAgg(figure).draw()
        others = [axes for axes in figure.get_axes() if axes is not panels[0]]
        assert others and min(axes.get_window_extent().x0 for axes in others) > 0.45 * figure.bbox.width
        box = figure.get_tightbbox()
        assert box.x0 > -0.05 and box.x1 < 12.05 and box.y0 > -0.05 and box.y1 < 5.05
    finally:
        plt.close(figure)


@every_figure
def test_width_and_theme_scale_the_figure(which: str):
    plain, wide = drawn(which, width=6.0), drawn(which, width=9.0)
    assert plain.get_size_inches()[0] == pytest.approx(6.0) and wide.get_size_inches()[0] == pytest.approx(
        9.0
    )
    slide = drawn(which, width=6.0 * SCALES["slides"], theme="slides")
    np.testing.assert_allclose(slide.get_size_inches(), SCALES["slides"] * plain.get_size_inches(), rtol=1e-6)
    sizes = [
        sorted({round(text.get_fontsize(), 6) for text in figure.findobj(Text) if text.get_text()})
        for figure in (plain, slide)
    ]
    np.testing.assert_allclose(sizes[1], SCALES["slides"] * np.array(sizes[0]), rtol=1e-4)


@pytest.mark.parametrize("which", ["curves", "wiring", "flow", "run"])
def test_colours_of_models_are_arguments(which: str):
    colours = ["#ff00ff", "#00aa00"][: FIGURES[which][2]]
    figure = drawn(which, colours=colours)
    texts = (artist for artist in figure.findobj(Text) if isinstance(artist, Text))
    used = {to_rgb(text.get_color()) for text in texts if text.get_text()}
    used |= {to_rgb(line.get_color()) for axes in figure.axes for line in axes.lines}
    assert {to_rgb(colour) for colour in colours} <= used


def test_attention_weights_have_the_colours_of_a_colour_map():
    blue, green = (
        np.asarray(draw_maps(grid(2, 1, 8), **look).axes[0].images[0].get_array())
        for look in ({}, {"cmap": "Greens"})
    )
    assert blue[..., 2].mean() > blue[..., 1].mean() and green[..., 1].mean() > green[..., 2].mean()


def test_queries_go_up_on_request():
    down, up = (
        np.asarray(draw_trace(traces(), query_axis=axis).axes[0].images[-1].get_array())
        for axis in ("down", "up")
    )
    np.testing.assert_array_equal(down, up[::-1])
    with pytest.raises(EdgewiseError, match="`query_axis`"):
        draw_trace(traces(), query_axis="left")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"titel": "x"}, "takes no `titel`; it takes ax, title"),
        ({"names": ["one"]}, "`names` as a list with one for each model, 2"),
        ({"colours": "red"}, "`colours` as a list"),
        ({"colours": ["red", "rouge"]}, "'rouge' in `colours`"),
        ({"width": 0.1}, "`width` is in inches"),
        ({"theme": "poster"}, "`theme` is paper or slides"),
        ({"cmap": "Blues"}, "takes no `cmap`"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(wrong: dict[str, Any], message: str):
    with pytest.raises(EdgewiseError, match=message):
        draw_curves(both(), **wrong)


def test_a_run_that_misses_its_tolerance_says_so():
    assert "misses its tolerance of 0.01" in words(drawn("run"))
