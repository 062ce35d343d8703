"""What only a release knows of itself: where its repository is, for the links of its page on PyPI.

README.md links to files beside it. On PyPI there are none, so a build with EDGEWISE_REPOSITORY set (the release workflow)
makes these links absolute, at the tag of this version, and states the project's addresses. Any other build changes nothing.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent


class ReleaseMetadata(MetadataHookInterface):
    """`readme` and `urls` of pyproject.toml, both dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get("EDGEWISE_REPOSITORY"):
            tag = f"v{_version()}"
            text = with_absolute_links(text, repository, tag)
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/blob/{tag}/docs/get-started.md",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """A Markdown text whose relative links and pictures lead to the repository at a tag."""

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}[{match[2]}]({repository}/{kind}/{tag}/{match[3]})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)", absolute, text)


def _version() -> str:
    source = (ROOT / "src/edgewise/__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert match is not None
    return match[1]
