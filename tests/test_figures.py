"""Figures: drawn from saved results, with the same bytes each time, and readable whatever a token or a result is."""

import json
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from odd_tokens import ODD

import edgewise
from edgewise.circuits.result import CircuitResult, ComponentCircuit, Curve, ModelCircuit
from edgewise.cli import main as cli
from edgewise.core.errors import EdgewiseError
from edgewise.core.text import visible
from edgewise.flow.collect import collect_flow
from edgewise.flow.config import FlowConfig
from edgewise.flow.result import Edge, Flow, Flows
from edgewise.models.loaded import load_models
from edgewise.plots.curves import HIGHEST, LOWEST, draw_curves
from edgewise.plots.flow import MAX_LINES, MIN_WEIGHT, draw_flow, visible_edges
from edgewise.plots.run import draw_run
from edgewise.plots.style import (
    DENSE,
    FORMATS,
    SPARSE,
    TARGET,
    Picture,
    model_colours,
    model_name,
    save_figure,
)
from edgewise.plots.wiring import circuit_heads, draw_wiring, head_edges

# ------------------------------------------------------------------------------------------------------ made by hand


def found(
    total: int, needed: int, names: list[str], prompts: int = 5, spread: bool = True
) -> ComponentCircuit:
    counts = sorted({0, 1, needed // 2, needed - 1, needed, min(total, 2 * needed), total} - {-1})
    explained = [min(1.0, 0.91 * count / max(needed, 1)) for count in counts]
    lower, upper = ([x - 0.05 for x in explained], [x + 0.05 for x in explained]) if spread else ([], [])
    weights = [(-1) ** (place % 3 == 2) * 2.0 / (place + 1) for place in range(len(names))]
    return ComponentCircuit(
        total=total,
        needed=needed,
        faithfulness=explained[counts.index(needed)],
        needed_per_prompt=[min(total, needed + place) for place in range(prompts)],
        curve=Curve(counts, explained, lower, upper),
        ranking=list(zip(names, weights, strict=True)),
    )


def circuit(
    name: str, kind: str, heads: int, edges: int, layers: int = 3, width: int = 4, kv_heads: int | None = None
) -> ModelCircuit:
    """Its ranking begins with three edges between heads and three others."""
    names = [f"L{layer}H{head}" for layer in range(layers) for head in range(width)]
    shared = "H" if kv_heads is None else "G"
    joined = [f"L0H1 -> L1{shared}1.k", "embedding -> L0H0.q", "L0H0 -> L1H2.q"]
    joined += ["MLP 0 -> logits", f"L1H2 -> L2{shared}0.v", "L2H1 -> MLP 2"]
    return ModelCircuit(
        model=name,
        kind=kind,
        accuracy=1.0,
        clean_score=3.0,
        corrupt_score=-3.0,
        prompts=6,
        left_out=1,
        heads=found(layers * width, heads, names),
        head_effects={key: [[0.1] * width for _ in range(layers)] for key in ("lost", "restored")},
        edges=found(400, edges, joined),
        kv_heads=[kv_heads or width] * layers,
        head_head_edges=(3, 48),
    )


def no_circuit(name: str = "tiny", kind: str = "dense") -> ModelCircuit:
    return ModelCircuit(name, kind, 0.5, 0.1, 0.0, 6, 6, warnings=[f"{name} does not show ioi: too small"])


def result_of(*models: ModelCircuit, task: str = "ioi") -> CircuitResult:
    return CircuitResult(task, "logit difference", 0.9, 0, "EAP-IG, 5 steps", [], [*models])


def both() -> CircuitResult:
    return result_of(circuit("big", "dense", 9, 90), circuit("small", "sparse", 2, 20))


def flow_of(
    tokens: list[str], kind: str = "dense", layers: int = 2, heads: int = 3, prompt: str = ""
) -> Flow:
    generator = random.Random(len(tokens))
    edges = [
        Edge(layer, head, query, key, round(generator.random() ** (6 if kind == "dense" else 1), 6))
        for layer in range(layers)
        for head in range(heads)
        for query in range(len(tokens))
        for key in range(query + 1)
    ]
    answers = [""] * (len(tokens) - 1) + [tokens[0]]
    return Flow(f"a {kind} one", kind, prompt or " ".join(tokens), tokens, answers, layers, heads, edges)


# ----------------------------------------------------------------------------------------------------- what is on it


def svg(figure: Figure, folder: Path) -> str:
    return save_figure(figure, folder / "figure", ["svg"])[0].read_text()


def texts(figure: Figure, folder: Path) -> list[str]:
    """What a reader of the SVG can select, line by line."""
    root = ET.fromstring(svg(figure, folder))
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def whole_text(figure: Figure, folder: Path) -> str:
    return " ".join(texts(figure, folder))


def axes_of(figure: Figure) -> list[Any]:
    return [*figure.axes]


def lines_of(figure: Figure) -> list[int]:
    """How many lines each panel's collection holds."""
    kinds = (LineCollection, PathCollection)
    return [len(c.get_paths()) for axes in axes_of(figure) for c in axes.collections if isinstance(c, kinds)]


def panels(figure: Figure) -> dict[str, Any]:
    return {axes.get_title(): axes for axes in axes_of(figure) if axes.get_title()}


# ------------------------------------------------------------------------------------------------------------- curves


def test_curves_show_the_threshold_the_ratio_and_where_each_model_stands(tmp_path):
    figure = draw_curves(both())
    shown = panels(figure)
    assert list(shown) == ["heads: 9 → 2", "edges: 90 → 20"]
    for axes, kind in zip(shown.values(), ("heads", "edges"), strict=True):
        dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert [line.get_ydata()[0] for line in dashed] == [0.9]
        curves = [line for line in axes.lines if len(line.get_xdata()) > 2]
        for line, model, colour in zip(curves, both().models, (DENSE, SPARSE), strict=True):
            curve = getattr(model, kind).curve
            assert [*line.get_xdata()] == curve.counts and [*line.get_ydata()] == curve.explained
            assert line.get_color() == colour
        assert len(axes.collections) == 2  # the bands
        arrows = [text for text in axes.texts if text.arrow_patch is not None]
        assert [arrow.xy[0] for arrow in arrows] == [getattr(both().models[1], kind).needed]
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
            counts = getattr(model, kind).needed_per_prompt
            lines = [line.get_xdata() for line in axes.lines if line.get_ydata()[0] == -row]
            np.testing.assert_allclose(np.concatenate(lines), np.percentile(counts, [0, 100, 25, 75, 50]))


def test_a_curve_beyond_the_picture_is_said_to_be(tmp_path):
    model = circuit("wild", "dense", 4, 20)
    heads = replace(model.heads, curve=Curve([0, 3, 4, 12], [-2.5, 0.5, 3.0, 1.0]))
    figure = draw_curves(result_of(replace(model, heads=heads)))
    assert "from -2.5 to 3, beyond the picture" in whole_text(figure, tmp_path)
    bottom, top = panels(figure)["heads: 4"].get_ylim()
    assert LOWEST - 0.1 < bottom < 0 < 1 < top < HIGHEST + 0.1
    assert "beyond" not in whole_text(draw_curves(both()), tmp_path)


def test_a_twin_that_needs_more_gets_an_arrow_to_the_right_and_one_that_needs_as_many_none(tmp_path):
    more = draw_curves(result_of(circuit("a", "dense", 3, 20), circuit("b", "sparse", 5, 20)))
    assert "0.6x" in texts(more, tmp_path) and "1.0x" in texts(more, tmp_path)
    arrows = {t: [x for x in axes.texts if x.arrow_patch is not None] for t, axes in panels(more).items()}
    assert [x.xy[0] for x in arrows["heads: 3 → 5"]] == [5] and arrows["edges: 20 → 20"] == []


# ------------------------------------------------------------------------------------------------------------- wiring


def test_wiring_fills_the_circuit_and_draws_its_edges_between_heads(tmp_path):
    figure = draw_wiring(both())
    assert lines_of(figure) == [3, 3]
    for axes, model, colour in zip(axes_of(figure), both().models, (DENSE, SPARSE), strict=True):
        filled = [line for line in axes.lines if line.get_markerfacecolor() == colour]
        places = {(int(y), int(x)) for line in filled for x, y in zip(*line.get_data(), strict=True)}
        assert places == circuit_heads(model) and len(places) == model.counts()["heads"]
        assert sum(len(line.get_xdata()) for line in axes.lines) == 12
        (drawn,) = axes.collections
        # the strongest comes last, on top; the third name in the ranking is negative
        assert [tuple(c[:3]) for c in drawn.get_edgecolors()] == [
            to_rgba(colour)[:3],
            to_rgba(TARGET)[:3],
            to_rgba(colour)[:3],
        ]
        widths, opacities = drawn.get_linewidths(), drawn.get_edgecolors()[:, 3]
        assert [*widths] == sorted(widths) and [*opacities] == sorted(opacities)
    edge = head_edges(both().models[0])[0]
    assert edge == ((0, 1), (1, 1), "k", 2.0)
    text = whole_text(figure, tmp_path)
    assert "9 of 12 heads; 3 of its 90 edges" in text and "L2" in text and "H3" in text
    assert "90% of the logit" in text and "5 prompts" in text and "Orange" in text


def test_shared_keys_and_values_reach_all_heads_that_read_them():
    edges = head_edges(circuit("grouped", "dense", 3, 20, kv_heads=2))
    assert [(edge.target, edge.kind) for edge in edges] == [
        ((1, 2), "k"), ((1, 3), "k"), ((1, 2), "q"), ((2, 0), "v"), ((2, 1), "v"),
    ]  # fmt: skip


def test_a_circuit_of_more_edges_than_were_saved_is_said_to_be(tmp_path):
    text = whole_text(draw_wiring(result_of(circuit("a", "dense", 3, 90))), tmp_path)
    assert "90 edges, of which the first 6 were saved" in text
    model = circuit("a", "dense", 3, 2)
    assert lines_of(draw_wiring(result_of(model))) == [1]  # of the first two


# --------------------------------------------------------------------------------------------------------------- flow


def test_a_line_for_each_open_edge_above_the_cut(tmp_path):
    tokens = ["one", "two", "three", "four", "five"]
    flows = Flows([[flow_of(tokens, "dense")], [flow_of(tokens, "sparse")]])
    dense, sparse = (row[0] for row in flows.rows)
    assert len(dense.edges) == len(sparse.edges) == 2 * 3 * 15
    seen = sum(edge.weight >= MIN_WEIGHT for edge in dense.edges)
    assert len(visible_edges(dense)) == seen < len(dense.edges)
    figure = draw_flow(flows)
    assert lines_of(figure) == [seen, len(sparse.edges)]
    for axes, flow in zip(axes_of(figure), (dense, sparse), strict=True):
        (drawn,) = axes.collections
        for path, colour, edge in zip(
            drawn.get_paths(), drawn.get_colors(), visible_edges(flow), strict=True
        ):
            (key, low), (query, high) = path.vertices
            assert (low, high) == (edge.layer, edge.layer + 1)
            assert (round(key), round(query)) == (edge.key, edge.query)
            assert 0 <= colour[3] - edge.weight < 0.0201
    text = whole_text(figure, tmp_path)
    assert f"{len(dense.edges) - seen} edges of the dense model with a weight under 0.01" in text
    for part in (*tokens, "90 open edges", "L0", "L1", "a dense one", "(sparse)", "opacity: weight."):
        assert part in text


def test_heads_have_hues_on_request(tmp_path):
    for heads in (3, 12):
        flows = Flows([[flow_of(["a", "b"], "sparse", heads=heads)]])
        plain, coloured = draw_flow(flows), draw_flow(flows, colour_heads=True)
        hues = {tuple(c[:3]) for axes in axes_of(coloured) for x in axes.collections for c in x.get_colors()}
        assert len(hues) == heads and f"H{heads - 1}" in texts(coloured, tmp_path)
        assert len({tuple(c[:3]) for x in axes_of(plain)[0].collections for c in x.get_colors()}) == 1


def test_a_picture_stays_small(tmp_path):
    tokens = [f"word{i}" for i in range(30)]
    flows = Flows([[flow_of(tokens, kind, layers=12, heads=12)] for kind in ("dense", "sparse")])
    figure = draw_flow(flows)
    assert sum(lines_of(figure)) == MAX_LINES
    assert f"{MAX_LINES // 2:,} heaviest" in whole_text(figure, tmp_path)
    assert (tmp_path / "figure.svg").stat().st_size < 3e6


def test_reading_a_flow_takes_the_open_edges_of_each_model():
    prompt = 'The opposite of " large " is "'
    flows = collect_flow(["pocket", "pocket-sparse"], FlowConfig((prompt,)))
    (dense,), (sparse,) = flows.rows
    assert (dense.kind, sparse.kind) == ("dense", "sparse") and dense.tokens == prompt.split()
    assert dense.answers == sparse.answers == [*[""] * 7, "small"]
    assert len(dense.edges) == 6 * 8 * 36 > 4 * len(sparse.edges) > 0
    model, tokenizer = edgewise.load("pocket-sparse"), edgewise.load_tokenizer("pocket")
    with edgewise.tap(model, read=["weights"]) as seen:
        model(**tokenizer(prompt, return_tensors="pt"))
    maps = np.zeros((6, 8, 8, 8))
    for edge in sparse.edges:
        maps[edge[:4]] = edge.weight
    expected = np.stack([x[0].detach().numpy() for _, x in sorted(seen.last["weights"].items())])
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


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path):
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


# --------------------------------------------------------------------------------------------------- laws for all of them


def all_figures(name: str = "ioi", tokens: list[str] | None = None) -> dict[str, tuple[Any, Any]]:
    result = replace(both(), task=name)
    flows = Flows([[flow_of(tokens or ["a", "b", "c"], kind)] for kind in ("dense", "sparse")])
    return {"curves": (result, draw_curves), "wiring": (result, draw_wiring), "flow": (flows, draw_flow)}


@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
@pytest.mark.parametrize("which", ["curves", "wiring", "flow"])
def test_what_was_saved_draws_the_same_bytes(which, tmp_path):
    made, draw = all_figures(tokens=ODD)[which]
    figure = draw(made)
    figure.savefig(tmp_path / "shown.png")  # somebody looks at it first, in another style
    first = save_figure(figure, tmp_path / "first" / which)
    made.save(tmp_path)
    second = save_figure(draw(type(made).load(tmp_path)), tmp_path / "second" / which)
    assert [path.suffix for path in first] == [f".{format}" for format in FORMATS]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.suffix
        assert one.stat().st_size < 500_000


def test_the_same_bytes_in_another_process_and_without_torch(tmp_path):
    both().save(tmp_path)
    Flows([[flow_of(ODD)]]).save(tmp_path)
    code = (
        "import sys\n"
        "from edgewise import CircuitResult, Flows, draw_curves, draw_flow, draw_wiring, save_figure\n"
        "result = CircuitResult.load('.')\n"
        "for figure, name in [(draw_curves(result), 'curves'), (draw_wiring(result), 'wiring'), "
        "(draw_flow(Flows.load('.')), 'flow')]: save_figure(figure, name, ['svg'])\n"
        "print('torch' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr
    here = {
        "curves": draw_curves(both()),
        "wiring": draw_wiring(both()),
        "flow": draw_flow(Flows([[flow_of(ODD)]])),
    }
    for name, figure in here.items():
        assert (tmp_path / f"{name}.svg").read_text() == svg(figure, tmp_path), name


def test_unusual_tokens_are_shown_as_text(tmp_path, recwarn):
    flows = Flows([[flow_of(ODD, prompt="".join(ODD))]])
    shown = texts(draw_flow(flows), tmp_path)
    for token in ODD:
        assert visible(token) in shown
    assert visible("\n") == "⏎" and visible("\t") == "⇥" and visible("$x^2$") == "$x^2$"
    assert visible("supercalifragilistic").endswith("…") and visible("🎉") in shown and "<b>&" in shown
    for which in ("curves", "wiring"):
        made, draw = all_figures(name="a_$\\b$ <i>\n\x07 שלום 🎉")[which]
        text = whole_text(draw(made), tmp_path)
        assert "a_$\\b$ <i>" in text and "שלום 🎉" in text
    assert not [str(warning.message) for warning in recwarn if "font" in str(warning.message)]


def test_long_names_of_models_keep_their_end(tmp_path):
    name = "/home/somebody/a/very/long/path/to/runs/my-twin"
    assert model_name(name).endswith("runs/my-twin") and len(model_name(name)) == 28
    for draw in (draw_curves, draw_wiring):
        models = [circuit(name, "dense", 9, 90), circuit(f"{name}-2", "sparse", 2, 20)]
        figure = draw(result_of(*models))
        assert "my-twin (dense)" in whole_text(figure, tmp_path)
        assert nothing_sticks_out(figure)


def nothing_sticks_out(figure: Figure) -> bool:
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    return bool(box.x0 > -0.02 and box.y0 > -0.02 and box.x1 < width + 0.02 and box.y1 < height + 0.02)


@pytest.mark.parametrize("which", ["curves", "wiring"])
def test_a_model_without_a_circuit_and_a_model_alone_are_drawn(which, tmp_path):
    draw = {"curves": draw_curves, "wiring": draw_wiring}[which]
    alone = circuit("alone", "sparse", 2, 20)
    no_edges = replace(alone, edges=None, kv_heads=None, head_head_edges=None)
    old = replace(alone, heads=found(12, 2, ["L0H0", "L1H1"], spread=False))
    one_head = circuit("one", "dense", 1, 6, layers=1, width=1)
    at_once = circuit("nothing is needed", "dense", 0, 0)
    cases = {
        "alone": result_of(alone),
        "without edges": result_of(no_edges, no_edges),
        "without spread": result_of(old),
        "one head": result_of(one_head, one_head),
        "nothing needed": result_of(at_once, at_once),
        "none": result_of(no_circuit()),
        "none of two": result_of(no_circuit(), no_circuit("twin", "sparse")),
        "second without": result_of(circuit("big", "dense", 9, 90), no_circuit("twin", "sparse")),
        "first without": result_of(no_circuit(), alone),
    }
    for case, made in cases.items():
        figure = draw(made)
        text = whole_text(figure, tmp_path)
        assert nothing_sticks_out(figure), case
        assert ("does not show ioi" in text) == ("none" in case or "without" in case.split()[-1:]), case
        assert "x" not in [word[-1] for word in text.split() if word[0].isdigit()] or len(made.models) == 2


def test_a_flow_of_one_token_and_of_closed_heads_is_drawn(tmp_path):
    closed = replace(flow_of(["a", "b"], "sparse"), edges=[])
    for flows in (
        Flows([[flow_of(["only"], heads=1, layers=1)]]),
        Flows([[closed]]),
        Flows([[closed], [closed]]),
    ):
        for colour_heads in (False, True):
            figure = draw_flow(flows, colour_heads)
            assert nothing_sticks_out(figure)
    assert "0 open edges" in whole_text(draw_flow(Flows([[closed]])), tmp_path)


def test_a_notebook_shows_a_figure():
    figure = draw_curves(both())
    assert isinstance(figure, Picture) and isinstance(figure, Figure)
    assert figure._repr_png_()[:4] == b"\x89PNG"


def test_two_models_of_a_kind_have_two_colours():
    assert model_colours(["dense", "sparse"]) == model_colours(["dense", "dense"]) == [DENSE, SPARSE]
    assert model_colours(["sparse"]) == [SPARSE] and model_colours(["sparse", "dense"]) == [SPARSE, DENSE]


def test_a_run_is_drawn_in_all_formats_and_the_same_each_time(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    summary = {
        "model": "a_$model",
        "recipe": "small",
        "seed": 3,
        "density": 0.0123,
        "dense_ce": 2.0,
        "tolerance": 0.01,
    }
    lines = [{"tokens": 1e5 * i, "expected_density": 0.9**i, "beta": 0.01 * i} for i in range(1, 40)]
    checks = [
        {"tokens": 1e5 * i, "held_out_ce": 2.0, "density": 0.9**i, "delta_ce": 0.3 / i}
        for i in range(1, 40, 5)
    ]
    for folder in folders:
        folder.mkdir()
        (folder / "log.jsonl").write_text("\n".join(json.dumps(line) for line in lines + checks))
        (folder / "summary.json").write_text(json.dumps(summary))
        assert draw_run(folder) == folder / "run.png"
    for format in FORMATS:
        first, second = ((folder / f"run.{format}").read_bytes() for folder in folders)
        assert first == second
    root = ET.fromstring((folders[0] / "run.svg").read_text())
    text = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    for part in (
        "a_$model",
        "1.23%",
        "edges left",
        "strength β",
        "held-out loss",
        "seed 3",
        "2.000 + 0.01",
        "0.1",
    ):
        assert part in text
    assert "mathdefault" not in text and "The highest, 2.300, is above" in text


# -------------------------------------------------------------------------------------------------------- command line


def test_the_commands_write_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["edgewise", "flow", "pocket-addition", "--prompt", "53+21=", "--out", str(tmp_path)]
    )
    cli.main()
    assert "flow.json is in" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"flow.json", "flow.svg", "flow.pdf", "flow.png"}
    arguments = [
        "circuit",
        "pocket-sparse",
        "--task",
        "antonym",
        "--prompts",
        "4",
        "--no-edges",
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", ["edgewise", *arguments])
    cli.main()
    for stem in ("circuit-curves", "circuit-wiring"):
        assert all((tmp_path / f"{stem}.{format}").is_file() for format in FORMATS)
    assert "antonym" in (tmp_path / "circuit-curves.svg").read_text()
