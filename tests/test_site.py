"""The documentation site: links are rewritten for it, dead ones are found, and every guide is in its menu."""

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site():
    """docs/build_site.py as a module; it needs the standard library only."""
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs/build_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("folder", "link", "on_the_site"),
    [
        ("..", "docs/interop.md#what-works-where", "interop.md#what-works-where"),
        ("..", "CITATION.cff", "citation.md"),
        ("..", "docs/notebooks/trace-one-prediction.ipynb", "notebooks/trace-one-prediction.md"),
        (".", "../CONTRIBUTING.md", "contributing.md"),
        ("research", "../figures/trace-diagram.png", "../figures/trace-diagram.png"),
        ("notebooks", "dense-against-sparse.ipynb", "../notebooks/dense-against-sparse.md"),
        (".", "https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_links_of_a_page_lead_to_pages_of_the_site(site, folder, link, on_the_site):
    assert site.with_links(f"[a]({link})", Path(folder)) == f"[a]({on_the_site})"


def test_dead_links_are_found(site, tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="other.html#there">1</a><a href="other.html#not-there">2</a><a href="missing.html">3</a>'
        '<img src="missing.png"><a href="https://example.org">4</a><a href="#here">5</a><p id="here">'
    )
    (tmp_path / "other.html").write_text('<h2 id="there">there</h2>')
    dead = {line.partition(": ")[2] for line in site.dead_links(tmp_path)}
    assert dead == {"other.html#not-there", "missing.html", "missing.png"}


def test_a_notebook_becomes_a_page_with_its_pictures(site, tmp_path):
    notebook = ROOT / "docs/notebooks/trace-one-prediction.ipynb"
    page = site.notebook_page(notebook, tmp_path)
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert page.count("```python") == sum(cell["cell_type"] == "code" for cell in cells)
    assert all(picture.name in page for picture in tmp_path.glob("*.png")) and list(tmp_path.glob("*.png"))
    assert "colab-badge.svg" not in page  # nothing is loaded from another site


def test_every_guide_is_in_the_menu():
    config = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    menu = json.dumps(config["nav"])
    for guide in (ROOT / "docs").glob("*.md"):
        assert f'"{guide.name}"' in menu, guide.name
    assert {palette["scheme"] for palette in config["theme"]["palette"]} == {"default", "slate"}
    assert config["theme"]["font"] is False
