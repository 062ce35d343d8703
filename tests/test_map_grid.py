"""The grid of attention maps: it shows what it is given, and is drawn again from what was saved."""

import json
import time
import warnings
from dataclasses import replace
from typing import Any
from xml.dom import minidom

import numpy as np
import pytest
from hand_made_maps import KINDS, noise, pattern, words
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.transforms import Bbox

from edgewise.core.errors import EdgewiseError
from edgewise.maps.head_types import TYPES
from edgewise.maps.result import AttentionMaps, Panel
from edgewise.maps.statistics import head_statistics, summarise
from edgewise.plots.attention_maps import draw_maps
from edgewise.plots.map_style import MapStyle
from edgewise.plots.style import MARK, save_figure

# -------------------------------------------------------------------------------------------------------------- data


def names(n: int) -> list[str]:
    return [f"L{i // 12}H{i % 12}" for i in range(n)]


def panel(title: str, n: int, t: int, seed: int = 0) -> Panel:
    """The first n of 144 heads, of seven kinds in turn."""
    kinds = [0.7 * pattern(kind, t, words(t)) + 0.3 * noise(t, seed) for kind in KINDS]
    of_kind = [head_statistics(weights, words(t)) for weights in kinds]
    statistics = {name: of_kind[i % 7] for i, name in enumerate(names(144))}
    maps = np.stack([kinds[i % 7] for i in range(n)]).astype(np.float32)
    return Panel(title, title, "dense", names(n), maps, statistics, 0.91)


def grid(n: int = 61, m: int = 9, t: int = 16) -> AttentionMaps:
    tokens = [f"word{i}" for i in words(t)]
    panels = [panel("GPT2", n, t), panel("Sparse GPT2", m, t, 1)]
    return AttentionMaps(" ".join(tokens), tokens, panels, "copy", "logit difference", 0.9, 32)


def empty(maps: AttentionMaps, index: int, note: str = "") -> AttentionMaps:
    panels = list(maps.panels)
    t = len(maps.tokens)
    panels[index] = replace(
        panels[index], heads=[], maps=np.zeros((0, t, t), np.float32), explained=None, note=note
    )
    return replace(maps, panels=panels)


def svg(maps: AttentionMaps, folder, style: MapStyle | None = None) -> bytes:
    return save_figure(draw_maps(maps, style), folder / "drawn", ["svg"])[0].read_bytes()


def texts(svg: bytes) -> list[str]:
    elements = minidom.parseString(svg).getElementsByTagName("text")
    return ["".join(child.nodeValue or "" for child in element.childNodes) for element in elements]


def test_redrawing_from_what_was_saved_gives_the_same_bytes(tmp_path):
    maps, style = grid(11, 3), MapStyle(colour_bar=True, mark="8,5")
    maps.save(tmp_path)
    again = AttentionMaps.load(tmp_path)
    assert again.to_dict() == maps.to_dict()
    first = [path.read_bytes() for path in save_figure(draw_maps(maps, style), tmp_path / "a")]
    second = [path.read_bytes() for path in save_figure(draw_maps(again, style), tmp_path / "b")]
    assert first == second
    content = json.loads((tmp_path / "attention-maps.json").read_text())
    assert content["panels"][0]["summary"]["types"]
    assert set(content["diagonal_change"]["L0H0"]) == {"dense", "twin", "change"}
    assert content["panels"][1]["statistics"]["L0H1"]["type"]["name"] in TYPES


def test_a_folder_without_saved_maps_is_refused(tmp_path):
    with pytest.raises(EdgewiseError, match="holds no attention maps"):
        AttentionMaps.load(tmp_path)
    grid(2, 1).save(tmp_path)
    (tmp_path / "attention-maps.safetensors").write_bytes(b"damaged")
    with pytest.raises(EdgewiseError, match="holds no attention maps"):
        AttentionMaps.load(tmp_path)


# ----------------------------------------------------------------------------------------------------------- drawing


def images(figure) -> list:
    return figure.axes[0].images


def labels(figure) -> dict[str, tuple[float, float]]:
    """Where each head's label is, of the first panel that has it."""
    positions: dict[str, tuple[float, float]] = {}
    for text in figure.axes[0].texts:
        if text.get_text().startswith("L") and text.get_ha() == "right":
            positions.setdefault(text.get_text(), text.get_position())
    return positions


def test_nine_maps_to_a_row_square_in_order_and_the_last_row_left_aligned():
    figure = draw_maps(grid())
    assert len(images(figure)) == 70
    extents = np.array(
        [image.get_extent() for image in images(figure)]
    )  # left, right, bottom, top; y runs down
    left, top = extents[:, 0].round(3), extents[:, 3].round(3)
    assert np.allclose(extents[:, 1] - extents[:, 0], extents[:, 2] - extents[:, 3])
    rows = [list(left[top == y]) for y in dict.fromkeys(top)]
    assert [len(row) for row in rows] == [9] * 6 + [7, 9]
    assert all(row == rows[0][: len(row)] for row in rows)
    at = labels(figure)
    assert list(at) == names(61)
    for (x, y), extent in zip(at.values(), extents, strict=False):
        assert 0 < extent[1] - x < 3 and 0 < y - extent[3] < 3  # the top right corner
    assert [text.get_text() for text in figure.axes[0].texts if text.get_fontweight() == "bold"] == [
        "GPT2",
        "Sparse GPT2",
    ]


def test_queries_go_down_keys_right_and_nothing_is_above_the_diagonal():
    t = 16
    w = np.ones((t, t), dtype=np.float32)  # also above the diagonal
    w[np.tril_indices(t)] = 0
    w[8, 5], w[12, 1] = 1, 0.5
    maps = grid(3, 2, t)
    maps = replace(maps, panels=[replace(maps.panels[0], maps=np.stack([w] * 3)), maps.panels[1]])
    image = images(draw_maps(maps))[0]
    pixels = np.asarray(image.get_array())
    each = len(pixels) // t
    cells = pixels[each // 2 :: each, each // 2 :: each] / 255
    dark = cells.sum(-1) < 2.99
    assert [tuple(map(int, at)) for at in np.argwhere(dark)] == [(8, 5), (12, 1)]
    assert cells[8, 5] == pytest.approx(to_rgb("#08306b"), abs=0.01)
    assert cells[8, 5].sum() < cells[12, 1].sum()


def test_a_marked_cell_is_framed_in_every_map(tmp_path):
    maps = grid(5, 2)
    figure = draw_maps(maps, MapStyle(mark="8,5"))
    frames = figure.axes[0].collections
    marks = [frame for frame in frames if np.allclose(np.array(frame.get_edgecolor())[0, :3], to_rgb(MARK))]
    assert [len(collection.get_paths()) for collection in marks] == [5, 2]
    left, right, bottom, top = images(figure)[0].get_extent()
    box = marks[0].get_paths()[0].get_extents()
    middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    assert middle == pytest.approx((left + 4.5 / 16 * (right - left), top + 7.5 / 16 * (bottom - top)))
    assert any(
        "query 8 “word7”, key 5 “word4”" in text
        for text in texts(svg(maps, tmp_path, MapStyle(mark="8,5", caption=True)))
    )
    for wrong in ("5,8", "17,1"):
        with pytest.raises(EdgewiseError, match="no cell"):
            draw_maps(maps, MapStyle(mark=wrong))


def test_titles_counts_and_caption_say_what_is_shown(tmp_path):
    caption = " ".join(texts(svg(grid(), tmp_path, MapStyle(colour_bar=True, caption=True)))).replace(
        "\u00a0", " "
    )
    for part in (
        "61 of 144 heads explain 90% of copy (91% held out)",
        "90%",
        "32 prompts",
        "logit difference",
        "attention weight",
    ):
        assert part in caption
    assert "Prompt (16 tokens): “word0 word1" in caption
    counts = summarise(grid().panels[0].shown)["types"]
    assert all(f"{name} {count}" in caption for name, count in counts.items())


@pytest.mark.parametrize("narrow", [False, True])
def test_no_text_runs_out_of_the_figure_or_into_another(narrow):
    maps = grid(12, 3)
    panels = [replace(maps.panels[0], title="W" * 80), maps.panels[1]]
    maps = replace(maps, panels=panels, prompt="W" * 300 + " 0123456789" * 9)
    figure = draw_maps(maps, MapStyle(narrow=narrow, colour_bar=True, mark="8,5", caption=True))
    figure.set_dpi(200)  # as it is saved
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    width, height = figure.bbox.width, figure.bbox.height
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
    assert not any(Bbox.intersection(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize("style", [MapStyle(), MapStyle(narrow=True, colour_bar=True, mark="3,1")])
def test_no_heads_and_one_head_are_drawn(tmp_path, style):
    why = "the twin does not show copy"
    for maps in (empty(grid(5, 5), 1, why), empty(empty(grid(5, 5), 0, why), 1), empty(grid(5, 1), 0, why)):
        drawn = texts(svg(maps, tmp_path, style))
        assert why in drawn and any(text.startswith("0 of 144 heads") for text in drawn)
    drawn = texts(svg(grid(1, 1), tmp_path, style))
    assert drawn.count("word3") == 8  # twice in the prompt, at two sides, in two panels
    assert "1 of 144 heads explains 90% of copy (91% held out)" in drawn


UNUSUAL = [
    "\n",
    "\t",
    "😀",
    "$x$",
    "<b>&\"'",
    "שלום",
    "مرحبا",
    "x" * 40,
    "_a_",
    "\\frac",
    "\x00",
    "\ud800",
    " ",
    "",
    "{}%",
    "日本",
]


def test_unusual_tokens_are_drawn_as_text(tmp_path):
    maps = replace(grid(1, 1), tokens=UNUSUAL, prompt="".join(UNUSUAL))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = save_figure(draw_maps(maps, MapStyle(mark="6,5"), caption=True), tmp_path / "drawn")
    drawn = texts(paths[0].read_bytes())
    for label in (
        "⏎",
        "⇥",
        "😀",
        "$x$",
        "<b>&\"'",
        "שלום",
        "مرحبا",
        "xxxxxxxxxxxxx…",
        "_a_",
        "\\frac",
        "␣",
        "∅",
        "{}%",
    ):
        assert drawn.count(label) == 4, label
    assert all(path.stat().st_size > 5000 for path in paths)
    # a line with right-to-left words is still set from the left
    assert any(text.startswith("\u200e") for text in drawn)


def test_all_heads_of_gpt2_are_drawn_fast_and_small(tmp_path):
    maps = grid(144, 9, 64)
    uneven = np.stack([noise(64, i) for i in range(144)]).astype(np.float32)  # what compresses worst
    maps = replace(maps, panels=[replace(maps.panels[0], maps=uneven)])
    began = time.process_time()
    paths = save_figure(draw_maps(maps), tmp_path / "drawn")
    assert time.process_time() - began < 10
    assert max(path.stat().st_size for path in paths) < 3_000_000
    assert paths[0].read_bytes().count(b"<image") == 144


def test_a_long_map_keeps_its_lines():
    maps = grid(9, 9, 256)
    stripe = np.zeros((9, 256, 256), dtype=np.float32)
    stripe[:, 101:, 101] = 1
    figure = draw_maps(
        replace(maps, panels=[replace(maps.panels[0], maps=stripe), maps.panels[1]]), caption=True
    )
    pixels = np.asarray(images(figure)[0].get_array())
    assert (pixels[-10:, :].sum(-1) < 200).any(1).all()
    assert "darkest of 2 x 2" in " ".join(text.get_text() for text in figure.axes[0].texts).replace("\n", " ")


def test_a_notebook_shows_the_figure_and_the_table():
    figure: Any = draw_maps(grid(2, 1))
    assert figure._repr_png_().startswith(b"\x89PNG")
    maps = empty(grid(2, 1), 1, "the twin does not show copy")
    assert repr(maps).startswith("AttentionMaps\nmodel") and "2 of 144" in repr(maps)
    assert maps._repr_html_().count("<tr>") == 3 and "the twin does not show copy" in maps._repr_html_()


def test_columns_and_marked_cells_are_validated():
    assert MapStyle(mark=" 8, 5").cell == (7, 4)
    for wrong in ("8", "8;5", "-1,0", "8,0", "a,b"):
        with pytest.raises(EdgewiseError, match="no cell"):
            MapStyle(mark=wrong)
    with pytest.raises(EdgewiseError, match="`columns`"):
        MapStyle(columns=0)
    rows = {image.get_extent()[3] for image in images(draw_maps(grid(10, 4), MapStyle(columns=4)))}
    assert len(rows) == 4


def test_the_last_row_is_about_as_long_as_the_others():
    rows = [image.get_extent()[3] for image in images(draw_maps(grid(10, 3)))]
    assert [rows.count(y) for y in dict.fromkeys(rows)] == [5, 5, 3]
    rows = [image.get_extent()[3] for image in images(draw_maps(grid(16, 7), MapStyle(columns=6)))]
    assert [rows.count(y) for y in dict.fromkeys(rows)] == [6, 6, 4, 4, 3]


def test_all_heads_are_a_row_for_each_layer():
    rows = [image.get_extent()[3] for image in images(draw_maps(grid(144, 144)))]
    assert [rows.count(y) for y in dict.fromkeys(rows)] == [12] * 24


def test_a_map_alone_can_print_its_weights():
    shown = [text.get_text() for text in draw_maps(grid(1, 1, 6), MapStyle(values=True)).axes[0].texts]
    weights = grid(1, 1, 6).panels[0].maps[0]
    assert "1" in shown and f"{weights[4, 2]:.2f}".removeprefix("0") in shown
    with pytest.raises(EdgewiseError, match="`values`"):
        draw_maps(grid(2, 1), MapStyle(values=True))
