"""The page: everything that was collected, with the program that draws it, in one file that asks the network for nothing.

The program is built from report/ at the top of the repository into assets/. What comes from results is data only: it stands
in a script element that no browser runs, with every character escaped that could end it, and the page's policy lets nothing
run but the program itself.
"""

import base64
import hashlib
import html
import json
import math
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from edgewise.core.errors import EdgewiseError, first_line
from edgewise.report.collect import collect

FILE = "report.html"
# Python's JSON is ASCII already, which takes care of U+2028 and U+2029.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report on a folder of results, by default to report.html in it."""
    path = Path(folder) / FILE if out is None else Path(out)
    content = report_html(collect(folder))
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(content, encoding="utf-8", newline="\n")
        part.replace(path)  # a report is there whole or not at all
    except OSError as error:
        part.unlink(missing_ok=True)
        raise EdgewiseError(f"the report cannot be written to {path}: {first_line(error)}") from error
    return path


def report_html(data: dict[str, Any]) -> str:
    """The page for what `collect` found."""
    style, script = _asset("style.css"), _asset("app.js")
    title = f"{data.get('title') or 'Report'} · Edgewise"
    return Template(_asset("page.html")).substitute(
        csp=html.escape(_policy(style, script)),
        title=html.escape(title.encode(errors="replace").decode()),
        style=style,
        script=script,
        data=_json(data),
    )


def _policy(style: str, script: str) -> str:
    """Nothing from outside, and nothing inside but the page's own style and program."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data: blob:",
            "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: Any) -> str:
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:  # not a number is no JSON: a browser would refuse all of it
        text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))
    except TypeError as error:
        raise EdgewiseError(f"this cannot be reported: {first_line(error)}") from error
    return text.translate(_ESCAPES)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _asset(name: str) -> str:
    try:
        return (files("edgewise.report") / "assets" / name).read_text(encoding="utf-8")
    except OSError as error:
        raise EdgewiseError(
            f"{name} of the report is missing here; in a clone, `npm ci && npm run build` in report/ makes it"
        ) from error
