"""The notebooks: they run from top to bottom, and are committed with their pictures and a badge."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from notebooks import notebook_code

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["dense-against-sparse", "trace-one-prediction"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_was_run(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(output["output_type"] != "error" for output in outputs)
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures and all(len(base64.b64decode("".join(picture))) > 10_000 for picture in pictures)
    assert "colab.research.google.com/github/" in "".join(cells[0]["source"]) and notebook.name in "".join(
        cells[0]["source"]
    )
    assert notebook.stat().st_size < 1_500_000 and str(ROOT) not in notebook.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook, tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    code = [sys.executable, "-c", notebook_code(notebook)]
    done = subprocess.run(code, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "runs").iterdir())
