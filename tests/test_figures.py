"""Figures: drawn from saved results, with the same bytes each time, and readable whatever a token or a result is."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
from hand_made_results import (
    axes_of,
    both,
    circuit,
    component_circuit,
    flow_of,
    lines_of,
    no_circuit,
    panels,
    result_of,
    svg,
    texts,
    whole_text,
)
from matplotlib.figure import Figure
from odd_tokens import ODD

from edgewise.cli.main import main
from edgewise.core.text import visible
from edgewise.flow.result import Flows
from edgewise.plots.curves import draw_curves
from edgewise.plots.flow import draw_flow
from edgewise.plots.style import (
    DENSE,
    FORMATS,
    SPARSE,
    Picture,
    model_colours,
    model_name,
    save_figure,
)
from edgewise.plots.wiring import draw_wiring
from edgewise.training.sparsify.result import SparsifyResult

# --------------------------------------------------------------------------------------------------- all of them


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
    old = replace(alone, heads=component_circuit(12, 2, ["L0H0", "L1H1"], spread=False))
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
        figure = draw(made, caption=True)
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


def test_results_draw_themselves_and_show_their_table():
    result, flows = both(), Flows([[flow_of(["a", "b"])]])
    assert panels(result.plot()) and lines_of(result.plot(wiring=True)) == [6, 6]
    assert len(axes_of(flows.plot(colour_heads=True))) == 2
    assert repr(flows).startswith("Flows\nmodel") and "a dense one" in repr(flows)
    assert flows._repr_html_().count("<tr>") == 2


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
        "delta_ce": 0.01,
        "sparse_ce": 2.01,
        "edges_per_query": 1.5,
        "heads_closed": 2,
        "heads": 8,
        "tokens": 4000000,
        "steps": 40,
        "seconds": 60.0,
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
        assert SparsifyResult.load(folder).save_figure(folder, caption=True)[-1] == folder / "run.png"
    for format in FORMATS:
        first, second = ((folder / f"run.{format}").read_bytes() for folder in folders)
        assert first == second
    root = ET.fromstring((folders[0] / "run.svg").read_text())
    text = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    for part in (
        "a_$model",
        "1.23%",
        "edges left",
        "multiplier β",
        "held-out loss",
        "seed 3",
        "2.000 + 0.01",
        "0.1",
    ):
        assert part in text
    assert "mathdefault" not in text and "The highest, 2.300, is above" in text


# -------------------------------------------------------------------------------------------------------- command line


def test_the_commands_write_figures(tmp_path, capsys):
    main(["flow", "pocket-addition", "--prompt", "53+21=", "--out", str(tmp_path)])
    assert "flow.json is in" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"flow.json", "flow.svg", "flow.pdf", "flow.png"}
    small = ["--task", "antonym", "--prompts", "4", "--no-edges"]
    main(["circuit", "pocket-sparse", *small, "--out", str(tmp_path)])
    for stem in ("circuit-curves", "circuit-wiring"):
        assert all((tmp_path / f"{stem}.{format}").is_file() for format in FORMATS)
    assert "antonym" in (tmp_path / "circuit-curves.svg").read_text()


def test_a_task_of_three_pairs_is_refused_and_leaves_no_figure(tmp_path, capsys):
    pair = {"clean": 'The opposite of " large " is "', "corrupt": 'The opposite of " hot " is "'}
    lines = [json.dumps(pair | {"answer": "small", "wrong": "cold"})] * 3
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    with pytest.raises(SystemExit):
        main(["circuit", "pocket", "--task", str(tmp_path / "own.jsonl"), "--out", str(tmp_path / "out")])
    assert "own has 3 pairs of prompts; a circuit needs at least 4 pairs" in capsys.readouterr().err
    assert not [*tmp_path.glob("out/*")]
