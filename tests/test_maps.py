"""Attention maps: every type of head on maps made by hand, and a grid that shows what it is given."""

import json
import time
import warnings
from dataclasses import replace
from xml.dom import minidom

import numpy as np
import pytest
from hosts import VOCABULARY, host
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.transforms import Bbox
from runs import command

import edgewise
from edgewise.circuits.result import CircuitResult, ComponentCircuit, Curve, ModelCircuit
from edgewise.cli.tables.maps import print_maps
from edgewise.core.errors import EdgewiseError
from edgewise.core.text import model_titles
from edgewise.maps.collect import collect_maps
from edgewise.maps.config import MapsConfig
from edgewise.maps.head_types import TYPES, HeadType, head_type
from edgewise.maps.result import AttentionMaps, Panel
from edgewise.maps.statistics import head_statistics, summarise
from edgewise.models.loaded import load_models
from edgewise.plots.attention_maps import draw_maps
from edgewise.plots.map_style import MapStyle
from edgewise.plots.style import MARK, save_figure

LENGTHS = [8, 12, 16, 64, 256]
KINDS = [
    "first-token",
    "current-token",
    "previous-token",
    "3 back",
    "induction",
    "vertical-stripes",
    "diffuse",
]

# ------------------------------------------------------------------------------------------------------ maps by hand


def words(t: int) -> list[int]:
    """A copy prompt: so many different tokens, twice."""
    return [i % (t // 2) for i in range(t)]


def pattern(kind: str, t: int, tokens: list[int]) -> np.ndarray:
    """A map of one kind; where it cannot look it rests on the first token."""
    w = np.zeros((t, t))
    stripes = [1, 3] if t < 16 else [2, t // 5, t // 3]
    for i in range(t):
        seen = [key for key in stripes if key < i]
        earlier = [j + 1 for j in range(i) if kind == "induction" and tokens[j] == tokens[i]]
        if kind == "diffuse":
            w[i, : i + 1] = 1 / (i + 1)
        elif kind == "vertical-stripes" and seen:
            w[i, seen] = 1 / len(seen)
        elif kind == "induction" and earlier:
            w[i, earlier[-1]] = 1
        elif kind in ("current-token", "previous-token") or kind.endswith("back"):
            w[i, max(0, i - back(kind))] = 1
        else:
            w[i, 0] = 1
    return w


def back(kind: str) -> int:
    return {"current-token": 0, "previous-token": 1}[kind] if kind.endswith("token") else int(kind.split()[0])


def noise(t: int, seed: int) -> np.ndarray:
    w = np.tril(np.random.default_rng(seed).gamma(1.0, size=(t, t)))
    return w / w.sum(1, keepdims=True)


def dotted(w: np.ndarray, seed: int) -> np.ndarray:
    """As a twin has it: weak edges closed, a third of the rows empty, the others at less than their weight."""
    rng = np.random.default_rng(seed)
    rows = np.ones(len(w))
    rows[1 + rng.permutation(len(w) - 1)[: len(w) // 3]] = 0
    return np.where(w < 0.06, 0, w) * (rows * rng.uniform(0.6, 1, len(w)))[:, None]


def components(type: HeadType) -> set[str]:
    return {str(component) for component in type.components or (type,)}


# ------------------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_found_at_every_length_clean_and_noisy(kind, t):
    # a text that repeats itself in all of these, so that induction is always possible
    clean = pattern(kind, t, words(t))
    if kind == "3 back" and t == 8:
        return  # there, that is where an induction head looks
    assert str(head_type(clean, words(t))) == kind
    assert head_type(clean, words(t)).score == pytest.approx(1, abs=0.02)
    for seed in range(4):
        noisy = 0.85 * clean + 0.15 * noise(t, seed)
        found = head_type(noisy, words(t))
        assert str(found) == kind
        assert kind == "diffuse" or found.score == pytest.approx(0.85, abs=0.12)


@pytest.mark.parametrize("t", [24, 64, 256])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "diffuse"])
def test_rows_of_a_twin_may_be_dotted_weak_or_empty(kind, t):
    for seed in range(4):
        w = dotted(0.9 * pattern(kind, t, words(t)) + 0.1 * noise(t, seed), seed)
        assert (w.sum(1) == 0).sum() == t // 3
        assert str(head_type(w, words(t))) == kind


@pytest.mark.parametrize("t", [16, 64, 256])
@pytest.mark.parametrize(("first", "second"), [(a, b) for i, a in enumerate(KINDS) for b in KINDS[i + 1 :]])
def test_mixtures_are_hybrids_of_their_parts_and_a_small_part_makes_none(first, second, t):
    a, b = (pattern(kind, t, words(t)) for kind in (first, second))
    for share in (0.5, 0.4):
        found = head_type(0.95 * ((1 - share) * a + share * b) + 0.05 * noise(t, 0), words(t))
        assert found.name == "hybrid" and components(found) == {first, second}
        assert found.components[0].score >= found.components[1].score >= 0.2
    assert str(head_type(0.82 * a + 0.18 * b, words(t))) == first
    assert str(head_type(0.18 * a + 0.82 * b, words(t))) == second


def test_three_parts_and_parts_one_after_the_other():
    w = sum(pattern(kind, 48, words(48)) for kind in ("current-token", "3 back", "first-token")) / 3
    assert components(head_type(w)) == {"current-token", "3 back", "first-token"}
    # current token until the text repeats itself, then the same token eight back: both lines are seen
    w = pattern("current-token", 16, words(16))
    w[8:] = np.eye(16, k=-8)[8:]
    assert components(head_type(w, words(16))) == {"current-token", "8 back"}


def test_a_score_does_not_depend_on_the_length():
    for kind in KINDS:
        scores = []
        for t in (16, 64, 256):
            w = 0.8 * pattern(kind, t, words(t)) + 0.2 * noise(t, t)
            scores.append(head_type(w, words(t)).score)
        assert max(scores) - min(scores) < 0.12, kind


def test_offsets_are_named():
    for offset in (0, 1, 2, 5, 9):
        found = head_type(pattern(f"{offset} back", 32, [*range(32)]))
        assert found.offset == (offset or None)
        assert found.name == {0: "current-token", 1: "previous-token"}.get(offset, "fixed-offset")


def test_induction_needs_repeated_tokens_that_explain_the_map():
    t, tokens = 15, [*range(8), *range(7)]
    w = pattern("induction", t, tokens)
    assert str(head_type(w, tokens)) == "induction"
    assert str(head_type(w, [f"word {i}" for i in tokens])) == "induction"
    assert str(head_type(w)) == str(head_type(w, [*range(t)])) == "7 back"
    # near misses: the token itself, and the one after the next
    assert str(head_type(pattern("8 back", t, tokens), tokens)) == "8 back"
    assert str(head_type(pattern("6 back", t, tokens), tokens)) == "6 back"
    # seven back also where nothing repeats: no token explains it
    longer = [*range(100, 120), *tokens]
    assert str(head_type(pattern("7 back", 35, longer), longer)) == "7 back"
    # previous token, in a text where that is sometimes what came after
    text = [0, 1, 0, 2, 3, 2, 4, 5, 4, 6, 7, 6, 8, 9, 10, 11]
    assert str(head_type(pattern("previous-token", 16, text), text)) == "previous-token"
    assert str(head_type(pattern("previous-token", 16, [0] * 16), [0] * 16)) == "previous-token"
    # the earliest occurrence, and not the latest
    thrice = [*range(8)] * 3
    w = np.zeros((24, 24))
    for i in range(24):
        w[i, i % 8 + 1 if i >= 8 else 0] = 1
    assert str(head_type(w, thrice)) == "induction"


@pytest.mark.parametrize("t", [24, 64, 256])
def test_sharp_weight_along_no_line_is_irregular(t):
    rng = np.random.default_rng(t)
    for _ in range(4):
        w = np.zeros((t, t))
        for i in range(t):
            w[i, rng.integers(0, i + 1)] = 1
        assert head_type(w).name == "irregular"
        assert head_type(0.9 * w + 0.1 * noise(t, 0)).name == "irregular"


def test_near_misses():
    t = 32
    one = pattern("current-token", t, words(t))
    faint = np.zeros((t, t))
    assert head_type(faint).name == "near-empty"
    faint[[9, 20], 0] = 0.4
    assert head_type(faint).name == "near-empty"
    faint[0, 0] = 1  # the first query sees nothing else
    assert head_type(faint).name == "near-empty"
    assert head_type(0.08 * one).name == "near-empty"
    assert head_type(0.2 * one).name == "current-token"
    band = sum(np.eye(t, k=-k) for k in range(12)) / 12
    assert head_type(band).name == "diffuse"
    wobbly = np.zeros((t, t))  # one to four back, in turns
    wobbly[np.arange(t), np.maximum(0, np.arange(t) - 1 - np.arange(t) % 4)] = 1
    assert head_type(wobbly).name in ("irregular", "hybrid")
    stripe = np.zeros((t, t))  # a single stripe is one
    stripe[:6, 0], stripe[6:, 5] = 1, 1
    assert head_type(stripe).name == "vertical-stripes"


@pytest.mark.parametrize("t", [1, 2, 3])
def test_a_map_too_short_for_a_line_is_typed_without_failing(t):
    assert head_type(np.tri(t)).name in ("irregular", "near-empty")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(4, 20).flatmap(
        lambda t: st.tuples(
            arrays(np.float32, (t, t), elements=st.floats(0, 1, width=32)),
            st.lists(st.integers(0, 5), min_size=t, max_size=t),
        )
    )
)
def test_any_map_has_one_type_and_half_its_weight_changes_nothing(case):
    w, tokens = case
    w = np.tril(w) / np.maximum(np.tril(w).sum(1, keepdims=True), 1)
    found = head_type(w, tokens)
    assert found.name in TYPES and -1e-9 <= found.score <= 1 + 1e-6
    assert (found.name == "hybrid") == (len(found.components) >= 2)
    assert (found.name in ("previous-token", "fixed-offset")) == (found.offset is not None)
    half = head_type(0.5 * w, tokens)
    assert half.name in (found.name, "near-empty")


# -------------------------------------------------------------------------------------------------------- statistics


def test_statistics_of_a_map_that_can_be_counted():
    w = np.array([[1, 0, 0, 0], [0.25, 0.75, 0, 0], [0, 0.6, 0.2, 0], [0, 0, 0, 0.3]], dtype=np.float32)
    found = head_statistics(w)
    assert found.weight == pytest.approx(2.1 / 3)
    assert found.peak == pytest.approx(0.75)
    assert found.first_token == pytest.approx(0.25 / 3)
    assert found.diagonal == pytest.approx(1.25 / 3)
    assert found.diagonal_dominant
    assert (found.strong_off_diagonal, found.open_edges) == (1, 6)
    p, q = np.array([0.25, 0.75]), np.array([0.75, 0.25])
    assert found.entropy == pytest.approx(-(p * np.log(p) + q * np.log(q)).sum() / 3)
    assert head_statistics(np.zeros((4, 4))).entropy == 0
    summary = summarise([found, head_statistics(np.zeros((4, 4)))])
    assert summary["heads"] == 2 and summary["open_edges"] == 3 and summary["diagonal_dominant"] == 0.5
    assert summarise([])["peak"] is None


# -------------------------------------------------------------------------------------------------------------- data


def names(n: int) -> list[str]:
    return [f"L{i // 12}H{i % 12}" for i in range(n)]


def panel(title: str, n: int, t: int, seed: int = 0) -> Panel:
    """The first n of 144 heads, of seven kinds in turn."""
    kinds = [0.7 * pattern(kind, t, words(t)) + 0.3 * noise(t, seed) for kind in KINDS]
    found = [head_statistics(weights, words(t)) for weights in kinds]
    measured = {name: found[i % 7] for i, name in enumerate(names(144))}
    maps = np.stack([kinds[i % 7] for i in range(n)]).astype(np.float32)
    return Panel(title, title, "dense", names(n), maps, measured, 0.91)


def grid(n: int = 61, m: int = 9, t: int = 16) -> AttentionMaps:
    tokens = [f"word{i}" for i in words(t)]
    panels = [panel("GPT2", n, t), panel("Sparse GPT2", m, t, 1)]
    return AttentionMaps(" ".join(tokens), tokens, panels, "copy", "logit difference", 0.9, 32)


def empty(maps: AttentionMaps, place: int, note: str = "") -> AttentionMaps:
    panels = list(maps.panels)
    t = len(maps.tokens)
    panels[place] = replace(
        panels[place], heads=[], maps=np.zeros((0, t, t), np.float32), explained=None, note=note
    )
    return replace(maps, panels=panels)


def svg(maps: AttentionMaps, folder, look: MapStyle | None = None) -> bytes:
    return save_figure(draw_maps(maps, look), folder / "drawn", ["svg"])[0].read_bytes()


def texts(svg: bytes) -> list[str]:
    found = minidom.parseString(svg).getElementsByTagName("text")
    return ["".join(child.nodeValue or "" for child in element.childNodes) for element in found]


def test_redrawing_from_what_was_saved_gives_the_same_bytes(tmp_path):
    maps, look = grid(11, 3), MapStyle(colour_bar=True, mark="8,5")
    maps.save(tmp_path)
    again = AttentionMaps.load(tmp_path)
    assert again.to_dict() == maps.to_dict()
    first = [path.read_bytes() for path in save_figure(draw_maps(maps, look), tmp_path / "a")]
    second = [path.read_bytes() for path in save_figure(draw_maps(again, look), tmp_path / "b")]
    assert first == second
    content = json.loads((tmp_path / "attention-maps.json").read_text())
    assert content["panels"][0]["summary"]["types"]
    assert set(content["diagonal_change"]["L0H0"]) == {"dense", "twin", "change"}
    assert content["panels"][1]["statistics"]["L0H1"]["type"]["name"] in TYPES


def test_what_is_not_ours_is_refused(tmp_path):
    with pytest.raises(EdgewiseError, match="holds no attention maps"):
        AttentionMaps.load(tmp_path)
    grid(2, 1).save(tmp_path)
    (tmp_path / "attention-maps.safetensors").write_bytes(b"damaged")
    with pytest.raises(EdgewiseError, match="holds no attention maps"):
        AttentionMaps.load(tmp_path)


# ----------------------------------------------------------------------------------------------------------- drawing


def images(picture) -> list:
    return picture.axes[0].images


def labels(picture) -> dict[str, tuple[float, float]]:
    """Where each head's label is, of the first panel that has it."""
    found: dict[str, tuple[float, float]] = {}
    for text in picture.axes[0].texts:
        if text.get_text().startswith("L") and text.get_ha() == "right":
            found.setdefault(text.get_text(), text.get_position())
    return found


def test_nine_maps_to_a_row_square_in_order_and_the_last_row_left_aligned():
    picture = draw_maps(grid())
    assert len(images(picture)) == 70
    extents = np.array(
        [image.get_extent() for image in images(picture)]
    )  # left, right, bottom, top; y runs down
    left, top = extents[:, 0].round(3), extents[:, 3].round(3)
    assert np.allclose(extents[:, 1] - extents[:, 0], extents[:, 2] - extents[:, 3])
    rows = [list(left[top == y]) for y in dict.fromkeys(top)]
    assert [len(row) for row in rows] == [9] * 6 + [7, 9]
    assert all(row == rows[0][: len(row)] for row in rows)
    at = labels(picture)
    assert list(at) == names(61)
    for (x, y), extent in zip(at.values(), extents, strict=False):
        assert 0 < extent[1] - x < 3 and 0 < y - extent[3] < 3  # the top right corner
    assert [text.get_text() for text in picture.axes[0].texts if text.get_fontweight() == "bold"] == [
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
    picture = draw_maps(maps, MapStyle(mark="8,5"))
    frames = picture.axes[0].collections
    marks = [frame for frame in frames if np.allclose(np.array(frame.get_edgecolor())[0, :3], to_rgb(MARK))]
    assert [len(collection.get_paths()) for collection in marks] == [5, 2]
    left, right, bottom, top = images(picture)[0].get_extent()
    box = marks[0].get_paths()[0].get_extents()
    middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    assert middle == pytest.approx((left + 5.5 / 16 * (right - left), top + 8.5 / 16 * (bottom - top)))
    assert any(
        "query 8 “word0”, key 5 “word5”" in text for text in texts(svg(maps, tmp_path, MapStyle(mark="8,5")))
    )
    for wrong in ("5,8", "16,0"):
        with pytest.raises(EdgewiseError, match="no cell"):
            draw_maps(maps, MapStyle(mark=wrong))


def test_titles_counts_and_caption_say_what_is_shown(tmp_path):
    said = " ".join(texts(svg(grid(), tmp_path, MapStyle(colour_bar=True)))).replace("\u00a0", " ")
    for part in (
        "61 of 144 heads explain 91% of copy",
        "90%",
        "32 prompts",
        "logit difference",
        "attention weight",
    ):
        assert part in said
    assert "Prompt (16 tokens): “word0 word1" in said
    counts = summarise(grid().panels[0].shown)["types"]
    assert all(f"{name} {count}" in said for name, count in counts.items())


@pytest.mark.parametrize("narrow", [False, True])
def test_no_text_runs_out_of_the_figure_or_into_another(narrow):
    maps = grid(12, 3)
    panels = [replace(maps.panels[0], title="W" * 80), maps.panels[1]]
    maps = replace(maps, panels=panels, prompt="W" * 300 + " 0123456789" * 9)
    picture = draw_maps(maps, MapStyle(narrow=narrow, colour_bar=True, mark="8,5"))
    picture.set_dpi(200)  # as it is saved
    renderer = FigureCanvasAgg(picture).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in picture.axes[0].texts]
    width, height = picture.bbox.width, picture.bbox.height
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
    assert not any(Bbox.intersection(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize("look", [MapStyle(), MapStyle(narrow=True, colour_bar=True, mark="3,0")])
def test_no_heads_and_one_head_draw_a_sensible_picture(tmp_path, look):
    why = "the twin does not show copy"
    for maps in (empty(grid(5, 5), 1, why), empty(empty(grid(5, 5), 0, why), 1), empty(grid(5, 1), 0, why)):
        drawn = texts(svg(maps, tmp_path, look))
        assert why in drawn and any(text.startswith("0 of 144 heads") for text in drawn)
    drawn = texts(svg(grid(1, 1), tmp_path, look))
    assert drawn.count("word3") == 8  # twice in the prompt, at two sides, in two panels
    assert "1 of 144 heads explains 91% of copy" in drawn


STRANGE = [
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


def test_strange_tokens_draw_and_stay_text(tmp_path):
    maps = replace(grid(1, 1), tokens=STRANGE, prompt="".join(STRANGE))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = save_figure(draw_maps(maps, MapStyle(mark="6,5")), tmp_path / "drawn")
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
    picture = draw_maps(replace(maps, panels=[replace(maps.panels[0], maps=stripe), maps.panels[1]]))
    pixels = np.asarray(images(picture)[0].get_array())
    assert (pixels[-10:, :].sum(-1) < 200).any(1).all()
    assert "darkest of 2 x 2" in " ".join(text.get_text() for text in picture.axes[0].texts).replace(
        "\n", " "
    )


def test_a_notebook_shows_it():
    assert draw_maps(grid(2, 1))._repr_png_().startswith(b"\x89PNG")


def test_columns_and_cells_are_checked():
    assert MapStyle(mark=" 8, 5").cell == (8, 5)
    for wrong in ("8", "8;5", "-1,0", "a,b"):
        with pytest.raises(EdgewiseError, match="no cell"):
            MapStyle(mark=wrong)
    with pytest.raises(EdgewiseError, match="`columns`"):
        MapStyle(columns=0)
    rows = {image.get_extent()[3] for image in images(draw_maps(grid(10, 4), MapStyle(columns=4)))}
    assert len(rows) == 4


# -------------------------------------------------------------------------------------------------------- from models

COPY = "take Adam strong project Daniel Sofia Heidi spoon take Adam strong project Daniel Sofia Heidi"


@pytest.fixture(scope="module")
def pocket() -> AttentionMaps:
    return collect_maps(["pocket", "pocket-sparse"], MapsConfig(prompt=COPY, heads="all"))


def test_maps_are_the_weights_of_the_models(pocket):
    assert [panel.title for panel in pocket.panels] == ["pocket", "Sparse pocket"]
    assert [panel.kind for panel in pocket.panels] == ["dense", "sparse"]
    assert pocket.tokens == COPY.split() and pocket.task is None and pocket.threshold is None
    dense, twin = (panel.maps for panel in pocket.panels)
    assert dense.shape == twin.shape == (48, 15, 15)
    assert np.allclose(dense.sum(-1), 1, atol=1e-5)
    assert (twin > 0).sum() < 0.25 * (dense > 0).sum()
    model = edgewise.load("pocket")
    ids = edgewise.load_tokenizer("pocket")(COPY, return_tensors="pt").input_ids
    with edgewise.tap(model, read=["weights"]) as seen:
        model(input_ids=ids)
    assert np.allclose(dense[2 * 8 + 3], seen.last["weights"][2][0, 3].detach())


def test_pocket_has_the_heads_of_a_copying_model(pocket):
    for panel in pocket.panels:
        types = {head: str(statistics.type) for head, statistics in panel.statistics.items()}
        assert types["L2H3"] == "previous-token" and types["L3H2"] == types["L3H1"] == "induction"
    assert sum(m.type.name == "near-empty" for m in pocket.panels[1].statistics.values()) > 10


def found(model: str, heads: list[str] | None) -> ModelCircuit:
    ranking = [(head, 1.0) for head in heads or []] + [("L0H0", 0.0)]
    whole = ComponentCircuit(48, len(heads or []), 0.93, [1], Curve([0, 48], [0.0, 1.0]), ranking)
    return ModelCircuit(model, "dense", 1.0, 2.0, -2.0, 32, 0, heads=None if heads is None else whole)


def test_heads_come_from_a_saved_circuit_without_a_search(tmp_path, capsys):
    models = [found("pocket", ["L2H3", "L1H7"]), found("pocket-sparse", None)]
    CircuitResult("copy", "logit difference", 0.9, 0, "", [{"clean": COPY}] * 32, models).save(tmp_path)
    loaded = load_models(["pocket", "pocket-sparse"])
    maps = collect_maps(loaded, MapsConfig("ioi", circuit=tmp_path, out=tmp_path / "out"))
    # made by hand: no search would find these heads, and its circuit.json would be in `out`
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"attention-maps"}
    assert (maps.task, maps.threshold, maps.prompts, maps.prompt) == ("copy", 0.9, 32, COPY)
    assert maps.panels[0].heads == ["L2H3", "L1H7"] and maps.panels[0].explained == 0.93
    assert maps.panels[1].heads == [] and "does not show copy" in maps.panels[1].note
    print_maps(maps)
    assert "does not show copy" in capsys.readouterr().out
    given = collect_maps(loaded, MapsConfig("ioi"), circuit=CircuitResult.load(tmp_path))
    assert given.to_dict() == maps.to_dict()
    assert collect_maps("pocket", MapsConfig(heads="l3h1", circuit=tmp_path)).threshold is None
    with pytest.raises(EdgewiseError, match="not of pocket-addition"):
        collect_maps("pocket-addition", MapsConfig(circuit=tmp_path, prompt="1 2 + 3 4 ="))


def test_the_command_searches_draws_and_prints(tmp_path):
    code, out, err = command("maps", "pocket", "pocket-sparse", "--prompts", "4", "--out", str(tmp_path))
    assert code == 0 and "attention-maps.json is in" in err
    for part in (
        "Sparse pocket",
        "change",
        "diagonal-dominant",
        "entropy",
        "open edges",
        "induction",
        "first token",
    ):
        assert part in out
    for ending in ("svg", "pdf", "png", "json", "safetensors"):
        assert (tmp_path / f"attention-maps.{ending}").is_file()
    maps = AttentionMaps.load(tmp_path)
    circuit = CircuitResult.load(tmp_path)
    for drawn, of in zip(maps.panels, circuit.models, strict=True):
        assert of.heads is not None
        assert drawn.heads == [head for head, _ in of.heads.ranking[: of.heads.needed]]
    before = (tmp_path / "attention-maps.svg").read_bytes()
    assert svg(maps, tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pocket", "pocket", "pocket"], "give one model, or a dense model and its twin, not 3"),
        (["pocket", "--heads", "L9H0"], "no head L9H0: heads go from L0H0 to L5H7"),
        (["pocket", "--heads", "5.1"], "'5.1' names no head"),
        (["pocket", "--heads", ","], "at least one head"),
        (["pocket", "--mark", "8"], "no cell"),
        (["pocket", "--columns", "0"], "--columns"),
        (["pocket", "--prompt", "take xyzzy"], "xyzzy"),
        (["pocket", "--prompt", "take"], "1 tokens; a map can have 2 to 128"),
        (["pocket", "--prompt", "take " * 200], "200 tokens"),
        (["pocket", "--circuit", "nowhere"], "holds no circuits"),
        (["pocket", "pocket-addition", "--heads", "all"], "read different tokens"),
        (["pocket", "--heads", "all", "--prompt", COPY, "--mark", "3,9"], "no cell 3,9 to mark"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, arguments, said):
    code, _, err = command("maps", *arguments, "--out", str(tmp_path))
    lines = [line for line in err.splitlines() if line.startswith("edgewise: ")]
    assert code == 2 and len(lines) == 1 and said in lines[0]


def test_loaded_models_need_their_tokenizer_and_other_architectures_work():
    model = edgewise.install(host("llama"))
    with pytest.raises(EdgewiseError, match="pass their tokenizer"):
        collect_maps(model, MapsConfig(heads="all", prompt=COPY))
    tokenizer = edgewise.load_tokenizer("pocket")
    assert len(tokenizer) > VOCABULARY
    small = " ".join(tokenizer.convert_ids_to_tokens(list(range(1, 9))))
    loaded = load_models(model, tokenizer=tokenizer)
    maps = collect_maps(loaded, MapsConfig(heads="L2H3, L0H0 L2H3", prompt=small))
    assert maps.panels[0].heads == ["L2H3", "L0H0"] and len(maps.panels[0].statistics) == 12


def test_panels_are_titled_as_a_paper_would():
    assert model_titles(["gpt2", "runs/gpt2-sparse"], ["dense", "sparse"]) == ["GPT2", "Sparse GPT2"]
    assert model_titles(["openai-community/gpt2-medium"], ["dense"]) == ["GPT2-medium"]
    assert model_titles(["pocket-sparse"], ["sparse"]) == ["Sparse pocket"]
    assert model_titles(["pocket-sparse", "pocket"], ["sparse", "dense"]) == ["Sparse pocket", "pocket"]
    assert model_titles(["a/model", "b/model"], ["dense", "dense"]) == ["a/model", "b/model"]
