"""Build the documentation site into site/: the README as its home, the guides, the API reference, the notebooks.

python docs/build_site.py            # warnings of the site generator and dead links are errors

Pages are put together in build/site and built by Zensical (zensical.toml), offline.
"""

import base64
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
SOURCE, SITE = ROOT / "build/site", ROOT / "site"
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.md",
    "CITATION.cff": "citation.md",
}
"""Files at the top that become pages."""


def main() -> None:
    gather()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout + done.stderr)
    if done.returncode or re.search(r"^\W*warning", done.stdout + done.stderr, re.IGNORECASE | re.MULTILINE):
        raise SystemExit("the site has warnings")
    if dead := dead_links(SITE):
        raise SystemExit("dead links:\n" + "\n".join(dead))
    print(f"{sum(1 for _ in SITE.rglob('*.html'))} pages in {SITE.relative_to(ROOT)}, no dead link")


# ----------------------------------------------------------------------------------------------------------- sources


def gather() -> None:
    """Copy guides, figures and pages into one folder, with links as they are from there."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCE, ignore=shutil.ignore_patterns("*.py", "__pycache__", "*.ipynb"))
    for file in SOURCE.rglob("*.md"):
        file.write_text(
            with_links(file.read_text(encoding="utf-8"), file.parent.relative_to(SOURCE)), encoding="utf-8"
        )
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        text = (
            text if name.endswith(".md") else f"# {page.removesuffix('.md').capitalize()}\n\n```\n{text}```\n"
        )
        (SOURCE / page).write_text(with_links(text, Path("..")), encoding="utf-8")
    for notebook in (ROOT / "docs/notebooks").glob("*.ipynb"):
        page = SOURCE / "notebooks" / f"{notebook.stem}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(notebook_page(notebook, page.parent), encoding="utf-8")


def with_links(text: str, folder: Path) -> str:
    """A page's text with links to pages as they are on the site. `folder`: where the text was, seen from docs/."""

    def replace(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if "://" in target or not target:
            return match[0]
        path = (ROOT / "docs" / folder / target).resolve()
        up = "../" * (0 if folder == Path("..") else len(folder.parts))
        if path.parent == ROOT and path.name in PAGES:
            return f"]({up}{PAGES[path.name]}{anchor})"
        if path.is_relative_to(ROOT / "docs"):
            inside = path.relative_to(ROOT / "docs").as_posix()
            return f"]({up}{inside.removesuffix('.ipynb') + '.md' if inside.endswith('.ipynb') else inside}{anchor})"
        return match[0]

    return re.sub(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", replace, text)


def notebook_page(notebook: Path, folder: Path) -> str:
    """A notebook with its outputs as Markdown; pictures go into the folder."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = re.sub(
                r"\[!\[Open in Colab\]\([^)]*\)\]", "[Open in Colab]", source
            )  # a picture of another site
            parts.append(with_links(source, Path("notebooks")))
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown(output, folder, f"{notebook.stem}-{number}") for output in cell.get("outputs", [])]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(output: dict, folder: Path, name: str) -> str:
    """One output of a cell: its picture, or its text."""
    data = output.get("data", {})
    if "image/png" in data:
        (folder / f"{name}.png").write_bytes(base64.b64decode("".join(data["image/png"])))
        return f"![Output of the cell above]({name}.png)"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text.strip() and output.get("name") != "stderr" else ""


# ------------------------------------------------------------------------------------------------------------- links


class Links(HTMLParser):
    """What a page refers to, and the anchors it has."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for key in ("id", "name"):
            if value := values.get(key):
                self.anchors.add(value)
        for key in ("href", "src"):
            if value := values.get(key):
                self.targets.append(value)


def dead_links(site: Path) -> list[str]:
    """Links between pages, to their sections and to files that lead nowhere, and addresses that a page would load."""
    pages: dict[Path, Links] = {}
    for page in site.rglob("*.html"):
        pages[page.resolve()] = links = Links()
        links.feed(page.read_text(encoding="utf-8"))
    dead = []
    for page, links in pages.items():
        for target in links.targets:
            address = urlsplit(target)
            if address.scheme or address.netloc or page.name == "404.html":
                continue
            path = (page.parent / unquote(address.path)).resolve() if address.path else page
            path = path / "index.html" if path.is_dir() else path
            anchor = unquote(address.fragment)
            if not path.is_file() or (anchor and path in pages and anchor not in pages[path].anchors):
                dead.append(f"{page.relative_to(site.resolve())}: {target}")
    return dead


if __name__ == "__main__":
    main()
