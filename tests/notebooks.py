"""Notebooks as scripts: their code cells, without the lines that only a notebook understands."""

import json
from pathlib import Path


def notebook_code(path: Path) -> str:
    """The code cells one after another; `%magic` lines do nothing."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")
    lines = (
        line[: len(line) - len(line.lstrip())] + "pass" if line.lstrip().startswith("%") else line
        for line in code.splitlines()
    )
    return "\n".join(lines) + "\n"
