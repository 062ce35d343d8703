"""The report's page: its file, and its use in a real browser, opened from the file without network."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.core.errors import EdgewiseError
from edgewise.reporting.collect import collect
from edgewise.reporting.packing import pack_maps
from edgewise.reporting.page import ReportPage, report_html
from edgewise.reporting.page import report as write_report

REPOSITORY = Path(__file__).parents[1]
AXE = REPOSITORY / "report" / "node_modules" / "axe-core" / "axe.min.js"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WORDS = ["The", " opposite", " of", ' "', " large", ' "', " is", ' "']
HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "javascript:window.hacked=1",
    "\"'`${window.hacked=1}",
    "\x00",
    "\u202ereversed\u2066",
    "x" * 10_000,
    "\u2028<!--",
    "",
    "\n",
]


# ------------------------------------------------------------------------------------------------------------ synthetic data


def maps(layers: int, heads: int, length: int, density: float, seed: int = 0) -> np.ndarray:
    """Random attention weights in eight bits, with this density of open edges."""
    random = np.random.default_rng(seed)
    cells = length * (length + 1) // 2
    weights = random.integers(1, 256, (layers, heads, cells), dtype=np.uint8)
    return np.where(random.random(weights.shape) < density, weights, 0).astype(np.uint8)


def circuit(
    layers: int, heads: int, counts: list[int], explained: list[float], names: list[str] | None = None
):
    names = names or [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]
    curve = {"counts": counts, "explained": explained, "lower": explained, "upper": explained}
    ranking = [[name, round(0.5 / (rank + 1), 4)] for rank, name in enumerate(names)]
    return {
        "total": len(names),
        "needed": counts[-2],
        "faithfulness": 0.9,
        "curve": curve,
        "ranking": ranking,
    }


def task(name: str, layers: int, heads: int, words: list[str], prompts: int = 2) -> dict[str, Any]:
    total = layers * heads
    edges = ["embedding -> MLP 0", "MLP 0 -> L1H0.k", "L0H1 -> L1H0.q", "L1H0 -> MLP 1", "MLP 1 -> logits"]
    models = []
    for model, kind, first in (("pocket", "dense", total // 2), ("pocket-sparse", "sparse", 2)):
        models.append(
            {
                "model": model,
                "kind": kind,
                "layers": layers,
                "heads": heads,
                "accuracy": 1.0,
                "prompts": 8,
                "warnings": [],
                "counts": {"heads": first, "edges": 5, "open_token_edges": 100.0, "token_edges": 10.0},
                "head_circuit": circuit(layers, heads, [0, 1, first, total], [0.0, 0.3, 0.9, 1.0]),
                "edge_circuit": circuit(0, 0, [0, 5, 5], [0.0, 0.9, 1.0], edges),
            }
        )
    prompts_data = []
    for seed in range(prompts):
        maps_per_model = [maps(layers, heads, len(words), density, seed) for density in (1.0, 0.02)]
        maps_per_model[1][0, 0, :2] = 255, 128  # two open edges of the sparse model's first head
        types = [
            [["diffuse"] * heads for _ in range(layers)],
            [["near-empty"] * heads for _ in range(layers)],
        ]
        types[0][0][0], types[1][0][0] = "diffuse + induction", "induction"
        text = f"{seed}{''.join(words)}"
        prompts_data.append(
            {
                "text": text,
                "tokens": words,
                "answers": [" small"],
                "maps": [pack_maps(model_maps) for model_maps in maps_per_model],
                "types": types,
            }
        )
    return {
        "task": name,
        "metric": "logit difference",
        "threshold": 0.9,
        "method": "EAP-IG",
        "ratios": {"heads": 2.0},
        "models": models,
        "prompts": prompts_data,
    }


def trace(kind: str, words: list[str]) -> dict[str, Any]:
    """Three layers of two heads; L1H1 carries the fifth token to the last, through a feature with contexts."""
    last, key = len(words) - 1, min(4, len(words) - 2)
    cells = np.zeros((3, 2, len(words) * (len(words) + 1) // 2), dtype=np.uint8)
    cells[1, 1, last * (last + 1) // 2 + key] = 255
    cells[2, 0, last * (last + 1) // 2 + key] = 40
    node = {"value": None, "origin": None, "number": 1, "influence": 0.5}
    nodes = [
        node | {"id": f"E_1_{i}", "kind": "token", "layer": -1, "position": i, "label": word}
        for i, word in enumerate(words)
    ]
    feature = {"kind": "feature", "layer": 1, "number": 12, "label": "sizes", "value": 2.5, "origin": key}
    nodes += [
        node | feature | {"id": f"1_12_{key}", "position": key},
        node | {"id": f"error_0_{last}", "kind": "error", "layer": 0, "position": last, "label": ""},
        node
        | {"id": "4_7_7", "kind": "logit", "layer": 3, "position": last, "label": " small", "value": 0.99},
    ]
    link = {"weight": 1.5, "flow": 0.6, "straight": 0.0}
    links = [
        link | {"source": f"1_12_{key}", "target": "4_7_7", "heads": [["L1H1", 1.2], ["L2H0", 0.3]]},
        link | {"source": f"E_1_{key}", "target": f"1_12_{key}", "straight": 1.5, "flow": 0.5, "heads": []},
        link | {"source": f"error_0_{last}", "target": "4_7_7", "weight": -0.4, "flow": 0.1, "heads": []},
    ]
    context = {"tokens": ["a", " big", words[0]], "activations": [0.0, 3.0, 0.5], "peak": 1}
    cluster = {"label": words[key], "nodes": [f"E_1_{key}", f"1_12_{key}"], "influence": 0.6}
    return {
        "model": "pocket" if kind == "dense" else "pocket-sparse",
        "kind": kind,
        "transcoder": "t",
        "prompt": "".join(words),
        "tokens": words,
        "logits": [[" small", 0.99]],
        "nodes": nodes,
        "links": links,
        "clusters": [cluster | {"first_layer": 0, "last_layer": 1}],
        "strengths": [[0.0], [0.4]],
        "origins": [0.1] * len(words),
        "paths": [{"link": 0, "paths": [["L1H1", 1.0], ["L1H1 then L2H0", 0.2]], "longer": 0.1}],
        "looks": [
            {
                "layer": 1,
                "head": 1,
                "query": last,
                "key": key,
                "weight": 0.98,
                "score": 9.0,
                "rest": 1.0,
                "pairs": [[f"error_0_{last}", f"1_12_{key}", 7.5], ["rest", f"E_1_{key}", 0.5]],
            }
        ],
        "interventions": [
            {
                "what": "L1H1",
                "kind": "head",
                "predicted": -2.0,
                "replaced": -2.75,
                "actual": -3.0,
                "frozen": -2.5,
                "values": -1.0,
                "attention": -2.5,
                "norms": 0.75,
                "errors": -0.25,
                "moved": [["L2H0", -2.4]],
            }
        ],
        "words": [
            {
                "label": words[key],
                "layers": "layers 0-1",
                "words": [key],
                "positions": [key],
                "influence": 0.6,
                "direct": 0.4,
            }
        ],
        "figures": {
            "influence_kept": 0.97,
            "influence_of_errors": 0.2,
            "attention_share": 0.4,
            "head_correlation": 0.61,
            "head_correlation_replaced": 0.93,
            "head_correlation_frozen": 0.97,
        },
        "contexts": {
            "1_12": {"contexts": [context], "raised": [[" small", 2.0]], "lowered": [[" big", -1.0]]}
        },
        "warnings": [],
        "cells": pack_maps(cells),
        "cells_largest": 0.3,
        "maps": pack_maps(maps(3, 2, len(words), 1.0)),
        "main_key": key,
    }


def report(words: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    words = words or WORDS
    training = {
        **dict.fromkeys(("recipe", "seed", "steps", "seconds", "tasks", "heads_closed", "heads")),
        "model": "pocket",
        "tolerance": 0.01,
        "dense_ce": 1.6,
        "sparse_ce": 1.604,
        "delta_ce": 0.004,
        "density": 0.01,
        "edges_per_query": 1.5,
        "tokens": 1000,
        "pressure": [[1, 0.1]],
        "checks": [[100, 0.5, 0.001], [1000, 0.01, 0.004]],
    }
    data = {
        "version": 1,
        "made": "edgewise",
        "title": "run",
        "notes": [],
        "trainings": [training],
        "evaluations": {},
        "tasks": [task("copy", 3, 4, words), task("ioi", 3, 4, words)],
        "traces": [[trace("dense", words), trace("sparse", words)]],
    }
    return data | changes


# ---------------------------------------------------------------------------------------------------------- the file


def data_in(page: str) -> Any:
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_page_holds_the_data_and_no_content_can_end_the_script_element():
    data = report(HOSTILE, title="<b>&</title>")
    page = report_html(data)
    assert data_in(page) == data
    begin = page.index('id="data">') + len('id="data">')
    inside = page[begin : page.index("</script>", begin)]
    assert not re.search("[<>&\u2028\u2029]", inside) and inside.isascii()
    assert "<title>&lt;b&gt;&amp;&lt;/title&gt;" in page


def test_the_policy_allows_the_page_itself_and_nothing_else():
    page = report_html(report())
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.split(" ", 1) for rule in html.unescape(policy).split("; "))
    [style], scripts = (
        re.findall("<style>(.*?)</style>", page, re.S),
        re.findall("<script>(.*?)</script>", page, re.S),
    )
    for source, text in (("style-src", style), ("script-src", scripts[0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[source] == f"'sha256-{digest}'"
    assert len(scripts) == 1
    assert (
        rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    )
    assert rules["img-src"] == "data: blob:"
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page.split('id="data"')[0])


def test_numbers_that_are_not_finite_become_null():
    data = report()
    data["trainings"][0]["delta_ce"] = float("nan")
    data["tasks"][0]["models"][0]["accuracy"] = float("-inf")
    page = data_in(report_html(data))
    assert page["trainings"][0]["delta_ce"] is None and page["tasks"][0]["models"][0]["accuracy"] is None


def run_folder(folder: Path) -> Path:
    """A post-training run, and a damaged circuit."""
    (folder / "twin").mkdir(parents=True)
    (folder / "twin" / "summary.json").write_text(
        json.dumps({"model": "m", "delta_ce": 0.004, "density": 0.01})
    )
    (folder / "circuit").mkdir()
    (folder / "circuit" / "circuit.json").write_text('{"task": ')
    return folder


def test_a_partial_run_is_reported_with_notes_on_what_is_missing(tmp_path: Path):
    path = write_report(run_folder(tmp_path / "run"))
    assert path == tmp_path / "run" / "report.html"
    data = data_in(path.read_text())
    assert data["trainings"][0]["density"] == 0.01 and not data["tasks"] and not data["traces"]
    assert any("circuit/circuit.json could not be read" in note for note in data["notes"])
    assert any("no traces" in note for note in data["notes"])
    assert data == collect(tmp_path / "run")  # an earlier report in the folder is ignored


def test_a_report_that_cannot_be_written_raises_and_leaves_no_file(tmp_path: Path):
    folder = run_folder(tmp_path / "run")
    (tmp_path / "taken").mkdir()
    with pytest.raises(EdgewiseError, match="taken is a folder; give a file"):
        write_report(folder, tmp_path / "taken")
    with pytest.raises(EdgewiseError, match="no folder"):
        write_report(tmp_path / "nowhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "taken"]


@pytest.mark.skipif(not AXE.is_file(), reason="node packages are not installed: `npm ci` in report/")
def test_the_committed_assets_are_built_from_the_sources(tmp_path: Path):
    source, assets = REPOSITORY / "report", REPOSITORY / "src" / "edgewise" / "reporting" / "assets"
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=source, check=True)
    for built in assets.iterdir():
        assert (tmp_path / built.name).read_bytes() == built.read_bytes(), (
            f"{built.name}: npm run build in report/"
        )


@pytest.fixture(scope="module")
def large_report() -> dict[str, Any]:
    """Two models of 144 heads, dense and with 5 % of edges, on 16 prompts of 64 tokens."""
    words = [f" word{i}" for i in range(64)]
    big = task("copy", 12, 12, words, prompts=16)
    for prompt in big["prompts"]:
        prompt["maps"][1] = pack_maps(maps(12, 12, 64, 0.05))
    return report(words, tasks=[big])


def test_a_large_report_stays_below_fifteen_megabytes(large_report: dict[str, Any]):
    assert len(report_html(large_report).encode()) < 15e6


# ------------------------------------------------------------------------------------------------------------ in a browser

in_browser = pytest.mark.xdist_group("browser")  # one browser, in one process


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser to test the page in: {', '.join(BROWSERS)}")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """The page opened from its file, offline; on exit there must have been no error, warning or request."""

    def __init__(self, browser: Any, path: Path, fragment: str = "", **options: Any):
        options = {"viewport": {"width": 1280, "height": 900}, "offline": True} | options
        self.context, self.problems, self.requests = browser.new_context(**options), [], []
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on(
            "console",
            lambda message: (
                self.problems.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"{path.as_uri()}{fragment}")

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.context.close()
        if kind is None:
            assert not self.problems
            assert all(url.startswith(("file:", "data:", "blob:")) for url in self.requests)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_html(report()))
    return path


def shown_heads(page: Any) -> list[list[str]]:
    panels = page.locator(".panel").all()
    return [panel.locator("button.head:visible").all_inner_texts() for panel in panels]


def wait_for_frame(page: Any) -> None:
    """Wait until the page has drawn the last change, which it does in the next animation frame."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def slide(page: Any, value: float) -> None:
    page.locator("#view-maps input[type=range]").fill(str(value))
    wait_for_frame(page)


def go(page: Any, fragment: str) -> None:
    page.evaluate(
        """fragment => new Promise(done => {
            if (location.hash === `#${fragment}`) return done();
            addEventListener('hashchange', () => done(), { once: true });
            location.hash = fragment;
        })""",
        fragment,
    )
    page.wait_for_selector(f"#view-{fragment.split('?')[0]}:visible")
    wait_for_frame(page)


def wait_for_fragment(page: Any, pattern: str) -> None:
    from playwright.sync_api import expect  # page.wait_for_function evaluates strings, which the page forbids

    expect(page).to_have_url(re.compile(f"#.*{pattern}"))


def wait_for_text(part: Any, text: str) -> None:
    part.filter(has_text=text).wait_for()


@in_browser
def test_the_overview_shows_the_key_figures(browser: Any, path: Path):
    with Visit(browser, path) as page:
        values = page.locator(".figure .value").all_inner_texts()
        assert [value.replace("\u00a0", " ") for value in values] == ["6→2", "1.0 %", "+0.004", "1"]
        bottom = page.locator(".figures").bounding_box()
        assert bottom["y"] + bottom["height"] < 900
        page.hover(".figure >> nth=1")
        wait_for_frame(page)
        assert "gate is open" in page.locator(".tip").inner_text()
        assert page.get_by_role("tab").all_inner_texts() == ["Overview", "Maps", "Flow", "Circuit", "Trace"]
        page.click(".figure >> nth=0")
        wait_for_frame(page)
        assert page.get_by_role("tab", name="Circuit").get_attribute("aria-selected") == "true"


@in_browser
def test_ratios_are_more_or_fewer_only_where_counts_differ(browser: Any, tmp_path: Path):
    task_data = task("copy", 3, 4, WORDS)
    task_data["ratios"] = {"heads": 2.0, "edges": 1202 / 1208, "head_head_edges": 1.0, "token_edges": 0.25}
    for model in task_data["models"]:
        model["counts"]["head_head_edges"] = 3
    path = tmp_path / "report.html"
    path.write_text(report_html(report(tasks=[task_data])))
    with Visit(browser, path) as page:
        ratios = page.locator(".ratio").all_inner_texts()
        assert sorted(ratios) == ["2 \u00d7 fewer", "4 \u00d7 more", "about as many", "as many"]


@in_browser
def test_hovering_a_cell_shows_query_key_and_weight_and_a_click_enlarges_the_head(browser: Any, path: Path):
    with Visit(browser, path, "#maps") as page:
        twin = page.locator(".panel").nth(1)
        box = twin.locator("button.head", has_text="L0H0").bounding_box()
        side = box["width"]
        page.mouse.move(box["x"] + 0.5 * side / 8, box["y"] + 15 + 1.5 * side / 8)
        wait_for_frame(page)
        tooltip = page.locator(".tip").inner_text()
        assert (
            "L0H0" in tooltip
            and "2 “opposite”" in tooltip
            and "1 “The”" in tooltip
            and f"{128 / 255:.3f}" in tooltip
        )
        twin.locator("button.head", has_text="L0H0").click()
        wait_for_frame(page)
        assert page.locator(".detail h3").inner_text() == "L0H0"
        assert page.locator(".detail .largemap:visible").count() == 2  # the same head in both models
        assert page.locator(".headbar .selected").inner_text() == "L0H0"
        large = page.locator(".largemap canvas").nth(1).bounding_box()
        page.mouse.move(large["x"] + large["width"] - 4, large["y"] + large["height"] - 4)
        wait_for_frame(page)
        assert '8 “"”' in page.locator(".tip").inner_text()
        wait_for_fragment(page, "head=L0H0")


@in_browser
def test_threshold_head_type_order_task_and_prompt_are_selectable(browser: Any, path: Path):
    with Visit(browser, path, "#maps") as page:
        assert [len(heads) for heads in shown_heads(page)] == [6, 2]
        slide(page, 0.2)
        assert [len(heads) for heads in shown_heads(page)] == [1, 1]
        slide(page, 1)
        assert [len(heads) for heads in shown_heads(page)] == [12, 12]
        page.get_by_label("Head type").select_option(label="induction (2)")
        wait_for_frame(page)
        assert shown_heads(page) == [["L0H0"], ["L0H0"]]
        page.get_by_label("Head type").select_option(index=0)
        page.get_by_role("button", name="Layer", exact=True).click()
        page.get_by_label("Task").select_option("ioi")
        page.get_by_label("Prompt").select_option(index=1)
        wait_for_fragment(page, "maps.*prompt=1")
        assert page.locator("#view-maps .prompt").inner_text().startswith("1The")


@in_browser
def test_a_link_reproduces_the_view(browser: Any, path: Path):
    fragment = "#maps?task=1&prompt=1&threshold=1&sort=layer&head=L1H2&open=true&query=3"
    with Visit(browser, path, fragment) as page:
        assert page.get_by_label("Task").input_value() == "ioi"
        assert page.locator(".detail h3").inner_text() == "L1H2"
        assert page.locator(".detail .word.query").first.inner_text() == '"'
        page.get_by_role("tab", name="Flow").click()
        wait_for_fragment(page, "flow")
        page.go_back()
        page.wait_for_selector("#view-maps:visible")
        wait_for_frame(page)
        assert page.locator(".detail h3").inner_text() == "L1H2"
        page.get_by_role("tab", name="Circuit").click()
        wait_for_frame(page)
        assert (
            page.locator(".headgrid .selected").count() == 2
            and page.locator(".head-disc.selected").count() == 2
        )
    with Visit(browser, path, "#nothing?task=99") as page:
        for odd in (
            "maps?task=99&prompt=-4&head=L99H99&open=true&threshold=x",
            "trace?pick=link:99&key=1e9&share=-1",
        ):
            go(page, odd)
            assert page.locator(".view:visible .card").count()


@in_browser
@pytest.mark.parametrize("tab", ["overview", "maps", "flow", "circuit", "trace"])
def test_every_figure_can_be_downloaded(browser: Any, path: Path, tab: str, tmp_path: Path):
    with Visit(browser, path, f"#{tab}", accept_downloads=True) as page:
        buttons = page.locator(".view:visible .actions button[aria-label^=Download]").all()
        assert len(buttons) >= 4
        for button in buttons:
            with page.expect_download() as waiting:
                button.click()
            name, saved = waiting.value.suggested_filename, tmp_path / "saved"
            waiting.value.save_as(saved)
            content = saved.read_bytes()
            if name.endswith(".svg"):
                assert ET.fromstring(content).tag.endswith("svg")
            elif name.endswith(".png"):
                assert content[:4] == b"\x89PNG" and len(content) > 500
            elif name.endswith(".json"):
                assert json.loads(content)
            else:
                assert content.count(b"\r\n") > 1


@in_browser
def test_every_view_works_with_the_keyboard(browser: Any, path: Path):
    with Visit(browser, path) as page:
        keys = page.keyboard
        focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
        page.get_by_role("tab", name="Overview").focus()
        keys.press("ArrowRight")
        page.wait_for_selector("#view-maps:visible")
        wait_for_frame(page)
        assert page.evaluate(focused) == "Maps"
        for _ in range(30):
            keys.press("Tab")
            if page.evaluate(focused).startswith("L0H0"):
                break
        keys.press("ArrowRight")
        wait_for_frame(page)
        assert page.evaluate(focused).startswith("L0H1, diffuse")
        keys.press("Enter")
        page.wait_for_selector(".detail:visible")
        wait_for_frame(page)
        for _ in range(30):
            keys.press("Tab")
            if page.evaluate("document.activeElement.className") == "largemap":
                break
        keys.press("ArrowUp")
        wait_for_frame(page)
        assert "7 “is”" in page.locator(".tip").inner_text()
        keys.press("Escape")
        page.wait_for_selector(".detail", state="hidden")
        wait_for_frame(page)
        assert page.evaluate(focused).startswith("L0H1, diffuse")  # the focus returns to the head
        page.get_by_role("tab", name="Maps").focus()
        keys.press("End")
        page.wait_for_selector(".node")
        wait_for_frame(page)
        page.locator(".node[tabindex='0']").focus()
        keys.press("ArrowLeft")
        keys.press("Enter")
        page.wait_for_selector(".node.own")
        wait_for_frame(page)
        assert "own" in page.evaluate("document.activeElement.getAttribute('class')")


@in_browser
def test_flow_lists_the_edges_of_a_token_and_steps_back_by_layer(browser: Any, path: Path):
    with Visit(browser, path, "#flow?all=true") as page:
        page.locator("svg.flow").nth(1).locator(".column").nth(1).hover()
        wait_for_frame(page)
        assert "2 “opposite” reads through" in page.locator(".tip").inner_text().replace("\n", " ")
        assert "L0H0 “The” 0.50" in page.locator(".tip").inner_text()
        page.get_by_role("button", name="Step back").click()
        wait_for_text(page.locator(".flows"), "can reach")
        wait_for_fragment(page, "steps=1")
        page.locator(".edge-lists button:visible").first.click()
        page.wait_for_selector(".headbar:visible")
        page.wait_for_selector(".selected-head", state="attached")


@in_browser
def test_a_trace_opens_down_to_head_shares_qk_attribution_and_contexts(browser: Any, path: Path):
    with Visit(browser, path, "#trace") as page:
        assert "The only head" in page.locator(".diagram .statement").nth(1).text_content()
        panel = page.locator(".inspector")
        page.locator(".link .touch").last.dispatch_event("click")  # the link with most flow is on top
        wait_for_text(panel, "Paths through heads")
        assert "L1H1 then L2H0" in panel.inner_text() and "direct" in panel.inner_text()
        panel.get_by_role("button", name="L1H1").click()
        wait_for_text(panel, "QK attribution")
        assert (
            "frozen \u22122.50" in panel.inner_text()
            and "all other sources \u00d7 token 5" in panel.inner_text()
        )
        wait_for_frame(page)
        assert "feature L1/12 at 5 “large”" in panel.inner_text() and "+7.5" in panel.inner_text()
        assert (
            page.locator(".carrier.selected").count() == 2
            and page.locator(".headbar .selected").inner_text() == "L1H1"
        )
        page.locator(".node.feature").click()
        wait_for_text(panel, "Top activating contexts")
        assert "big" in panel.inner_text() and "Promotes" in panel.inner_text()
        wait_for_fragment(page, "pick=node")
        page.get_by_role("button", name="pocket", exact=True).last.click()
        wait_for_fragment(page, "side=0")


@in_browser
def test_a_trace_says_above_the_fold_how_far_it_can_be_trusted(browser: Any, path: Path):
    with Visit(browser, path, "#trace") as page:
        trust = page.locator(".trust")
        assert "log odds of “small”" in trust.inner_text()
        assert trust.locator("tbody tr").first.locator("td").all_inner_texts()[1::3] == [
            "0.61",
            "0.93",
            "0.97",
        ]
        box = trust.bounding_box()
        assert box["y"] + box["height"] < 900
        row = page.locator(".effects li")
        assert "\u22123.00" in row.inner_text() and "moves L2H0 \u22122.4" in row.inner_text()
        assert row.locator(".part").count() == 4
        assert "modulated at" in page.locator(".diagram").first.text_content()


@in_browser
def test_every_run_is_there_under_its_name(browser: Any, tmp_path: Path):
    """Runs, traces and flows on the same prompt, each with a switch."""
    pairs = [[trace("dense", WORDS), trace("sparse", WORDS)] for _ in range(2)]
    for run, pair in zip(("demo/trace", "trace"), pairs, strict=True):
        for one in pair:
            one["label"] = f"{one['prompt']} ({run})"
    runs = [
        report()["trainings"][0] | {"run": run, "delta_ce": delta}
        for run, delta in (("a", 0.004), ("b", 0.02))
    ]
    flow: dict[str, Any] = task("flow of it", 3, 4, WORDS) | {"metric": ""}
    for model in flow["models"]:
        model.update(head_circuit=None, edge_circuit=None, counts={}, accuracy=None)
    file = tmp_path / "report.html"
    evaluations = {"pocket": {"ce": 1.6, "density": 1.0, "edges_per_query": 48.5}}
    evaluations["pocket-sparse"] = {"ce": 1.606, "density": 0.0045, "edges_per_query": 0.2}
    file.write_text(
        report_html(report(traces=pairs, trainings=runs, tasks=[task("copy", 3, 4, WORDS), flow]))
    )
    with Visit(browser, file, "#trace") as page:
        labels = page.locator("#view-trace select").first.locator("option").all_inner_texts()
        assert [label.split("(")[-1] for label in labels] == ["demo/trace)", "trace)"]
        go(page, "overview")
        assert page.locator("#view-overview select option").all_inner_texts() == ["a", "b"]
        assert page.locator(".figure.missed").count() == 0
        page.locator("#view-overview select").select_option("b")
        wait_for_frame(page)
        assert "misses its tolerance of 0.01" in page.locator(".figure.missed").inner_text()
        assert page.locator(".facts .missed").inner_text().startswith("loss, misses its tolerance")
        end = page.locator(
            ".training .chart .point"
        ).last  # above the dashed line, whatever the last check was
        assert end.bounding_box()["y"] < page.locator(".training line.target").bounding_box()["y"] - 5
        assert page.locator(".tasks-table tbody tr").count() == 1  # a flow is no task
        go(page, "flow?task=1")
        assert page.locator("#view-flow svg").count() > 0
    file.write_text(report_html(report(evaluations=evaluations)))
    with Visit(browser, file) as page:  # the twin of the circuits, not that of another run
        figures = page.locator(".figure").all_inner_texts()
        assert "0.45" in figures[1] and "pocket-sparse" in figures[1] and "+0.006" in figures[2]


@in_browser
def test_a_missed_kl_looks_missed_unless_only_the_loss_is_held_to_the_tolerance(browser: Any, tmp_path: Path):
    file, training = tmp_path / "report.html", report()["trainings"][0] | {"kl": 0.013}
    for constraint, missed in (("loss-and-kl", 1), ("loss", 0)):
        file.write_text(
            report_html(report(trainings=[training | {"constraint": constraint}], tasks=[], traces=[]))
        )
        with Visit(browser, file) as page:
            assert page.locator(".figure.missed").count() == page.locator(".facts .missed").count() == missed
            assert (
                "KL 0.013 misses its tolerance of 0.01" in page.locator(".figures").inner_text()
            ) == missed


@in_browser
def test_one_validation_is_a_point(browser: Any, tmp_path: Path):
    training = report()["trainings"][0] | {"checks": [[1000, 0.01, 0.004, 0.003]]}
    file = tmp_path / "report.html"
    file.write_text(report_html(report(trainings=[training])))
    with Visit(browser, file) as page:
        assert (
            page.locator(".training .chart .point").count() == 4
        )  # density; loss, KL and the loss at the end


@in_browser
def test_nodes_are_found_pinned_and_grouped_in_the_link_and_exported_as_supernodes(browser: Any, path: Path):
    with Visit(browser, path, "#trace") as page:
        page.get_by_label("Find a feature or token").fill(
            "SMALL"
        )  # the output, and the feature that promotes it
        chips = page.locator(".card.graph .chip")
        wait_for_frame(page)
        assert chips.all_inner_texts() == ["L1/12 at 5 “large”", "output “small”"]
        assert page.locator(".node.found").count() == 2 and page.locator(".node.faded").count() == 9
        for chip in (0, 1):
            chips.nth(chip).click()
            page.get_by_role("button", name="Pin", exact=True).click()
            page.get_by_label("Group").fill("sizes; of: things")
            page.get_by_label("Group").press("Enter")
            wait_for_fragment(page, "pins1=")
        wait_for_text(page.locator(".pins"), "2 pinned nodes")
        assert page.locator(".group-name").text_content() == "sizes; of: things"
        page.keyboard.press("Escape")
        wait_for_frame(page)
        assert chips.count() == 0 and page.locator(".node.pinned").count() == 2
        link = page.url.partition("#")[2]
    with Visit(browser, path, f"#{link}") as page:
        pins = page.locator(".pins")
        wait_for_text(pins, "sizes; of: things")
        with page.expect_download() as download:
            pins.get_by_role("button", name="Export as supernodes").click()
        saved = json.loads(download.value.path().read_text())["qParams"]
        assert saved["pinnedIds"] == ["1_12_4", "4_7_7"]
        assert saved["supernodes"] == [["sizes; of: things", "1_12_4", "4_7_7"]]
        pins.get_by_role("button", name="Unpin L1/12").click()
        wait_for_text(pins, "1 pinned node")
        page.get_by_role("button", name="pocket", exact=True).last.click()  # the other model has its own
        wait_for_fragment(page, "side=0")
        wait_for_frame(page)
        assert pins.count() == 0
    with Visit(browser, path, "#trace?pins1=%25zz:nowhere,1_12_4;broken;:9_9_9") as page:
        wait_for_text(page.locator(".pins"), "1 pinned node")


@in_browser
def test_the_framed_row_is_the_hovered_one_and_else_the_selected(browser: Any, path: Path):
    with Visit(browser, path, "#maps?head=L0H0&open=true") as page:
        drawn = "() => document.querySelectorAll('.largemap canvas')[1].toDataURL()"
        box = page.locator(".largemap canvas").nth(1).bounding_box()
        selected = page.evaluate(drawn)
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        wait_for_frame(page)
        hovered = page.evaluate(drawn)
        page.mouse.move(5, 5)
        wait_for_frame(page)
        assert hovered != selected == page.evaluate(drawn)


@in_browser
def test_escape_closes_and_back_goes_back(browser: Any, path: Path):
    with Visit(browser, path, "#maps") as page:
        page.locator("button.head:visible").first.click()
        wait_for_fragment(page, "open=true")
        page.locator("h1").click()  # the focus is elsewhere
        page.keyboard.press("Escape")
        wait_for_frame(page)
        assert page.locator(".detail:visible").count() == 0
        page.go_back()
        wait_for_fragment(page, "open=true")


@in_browser
def test_every_view_fits_a_phone(browser: Any, path: Path):
    with Visit(browser, path, viewport={"width": 380, "height": 800}) as page:
        for tab in ("overview", "maps?head=L0H1&open=true", "flow", "circuit", "trace"):
            go(page, tab)
            assert page.evaluate("document.documentElement.scrollWidth") <= 380


@in_browser
def test_hostile_content_is_inert(browser: Any, tmp_path: Path):
    data = report(HOSTILE, title=HOSTILE[0], notes=HOSTILE)
    data["tasks"][0] |= {"task": HOSTILE[1], "metric": HOSTILE[0]}
    data["tasks"][0]["prompts"][0]["tokens"] = [None, *HOSTILE[1:]]
    data["tasks"][0]["models"][0] |= {"model": HOSTILE[3], "warnings": HOSTILE}
    data["traces"][0][1]["nodes"][0]["label"] = HOSTILE[1]
    path = tmp_path / "report.html"
    path.write_text(report_html(data))
    with Visit(browser, path) as page:
        for tab in (
            "overview",
            "maps?head=L0H0&open=true",
            "flow?token=3",
            "circuit",
            "trace?pick=node:1_12_4",
        ):
            go(page, tab)
            assert not page.locator(".view:visible >> text=could not be drawn").count()
        assert page.evaluate("window.hacked") is None
        assert not page.locator("img, iframe, object, embed, a[href^=javascript]").count()
        assert page.locator("script").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        longest = page.evaluate(
            "Math.max(...[...document.querySelectorAll('svg text')].map(e => e.textContent.length))"
        )
        assert longest < 100


@in_browser
def test_the_policy_holds_in_the_browser(browser: Any, path: Path):
    visit = Visit(browser, path)
    visit.page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.hacked = 1';
        document.body.append(script);
        document.body.insertAdjacentHTML('beforeend', '<img src="https://example.org/x.png" onerror="window.hacked = 1">');
        return fetch('https://example.org').catch(() => null);
    }""")
    visit.page.wait_for_timeout(100)
    assert visit.page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in problem for problem in visit.problems)
    visit.context.close()


@in_browser
def test_missing_results_have_a_note_and_no_tab(browser: Any, tmp_path: Path):
    path = write_report(run_folder(tmp_path / "run"))
    with Visit(browser, path, "#trace") as page:
        assert page.get_by_role("tab").all_inner_texts() == ["Overview"]
        assert "circuit.json could not be read" in page.locator(".notes").inner_text()
    bare = report(trainings=[], traces=[[trace("sparse", WORDS)]])
    bare["tasks"][0] |= {"prompts": []}
    bare["tasks"][0]["models"][1] |= {"head_circuit": None, "edge_circuit": None, "layers": 0}
    bare["tasks"] = [bare["tasks"][0], bare["tasks"][1] | {"models": bare["tasks"][1]["models"][:1]}]
    path.write_text(report_html(bare))
    with Visit(browser, path) as page:
        for fragment in ("maps", "maps?task=1", "flow", "flow?task=1", "circuit", "circuit?task=1", "trace"):
            go(page, fragment)
            assert not page.locator("text=could not be drawn").count()


@in_browser
def test_the_page_works_inside_a_notebook(browser: Any, path: Path, tmp_path: Path):
    """In a sandboxed frame, without a URL or storage of its own."""
    outside = tmp_path / "notebook.html"
    outside.write_text(ReportPage(path)._repr_html_())
    with Visit(browser, outside) as page:
        frame = page.frame_locator("iframe")
        frame.get_by_role("tab", name="Maps").click()
        frame.locator("button.head").first.click()
        frame.locator(".detail h3").wait_for()


@in_browser
def test_all_views_are_printed(browser: Any, path: Path, tmp_path: Path):
    with Visit(browser, path, color_scheme="dark") as page:
        page.pdf(path=tmp_path / "report.pdf")
        assert (tmp_path / "report.pdf").stat().st_size > 20_000
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        wait_for_frame(page)
        assert page.locator(".view:visible").count() == 5
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@in_browser
@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: `npm ci` in report/")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, path: Path, scheme: str):
    with Visit(browser, path, color_scheme=scheme, bypass_csp=True) as page:
        page.evaluate(AXE.read_text())
        rules = (
            {} if scheme == "light" else {"runOnly": ["color-contrast"]}
        )  # all that the dark theme changes
        for tab in (
            "overview",
            "maps?head=L0H1&open=true",
            "flow",
            "circuit?head=L0H0",
            "trace?pick=link:0",
            "trace?pick=node:1_12_4&find=large&pins1=sizes:1_12_4,E_1_4",
        ):
            go(page, tab)
            findings = page.evaluate("rules => axe.run(rules).then(results => results.violations)", rules)
            serious = [
                (finding["id"], [node["html"][:200] for node in finding["nodes"][:3]])
                for finding in findings
                if finding["impact"] in ("serious", "critical")
            ]
            assert not serious, (tab, serious)


@in_browser
def test_a_large_report_opens_and_its_threshold_slides(
    browser: Any, large_report: dict[str, Any], tmp_path: Path
):
    path = tmp_path / "report.html"
    path.write_text(report_html(large_report))
    with Visit(browser, path, "#maps?threshold=1") as page:
        opened = page.evaluate("performance.getEntriesByName('drawn')[0].startTime")
        assert [len(heads) for heads in shown_heads(page)] == [144, 144]
        frames = page.evaluate("""async () => {
            const slider = document.querySelector('#view-maps input[type=range]');
            const times = [];
            for (let i = 0; i < 20; i++) {
                slider.value = 0.2 + 0.04 * i;
                slider.dispatchEvent(new Event('input', { bubbles: true }));
                const begin = performance.now();
                await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
                times.push(performance.now() - begin);
            }
            return times.sort((a, b) => a - b);
        }""")
        print(
            f"opened after {opened:.0f} ms; frames {frames[10]:.0f} ms in the median, {frames[-1]:.0f} ms at most"
        )
        slide(page, 0.2)
        assert [len(heads) for heads in shown_heads(page)] == [1, 1]
