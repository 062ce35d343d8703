"""The report as one HTML file: results, style sheet and program; it makes no network request.

The program is built from report/ at the top of the repository into assets/. Results are data only: they stand in a script
element that no browser runs, with every character escaped that could end it, and the content security policy allows no
script but the program itself.
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
from edgewise.core.files import write_text
from edgewise.reporting.collect import collect

FILE = "report.html"
# json.dumps writes ASCII, so that U+2028 and U+2029 are escaped already.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


class ReportPage(type(Path())):
    """The path of a written page; a notebook shows the page itself, to be used in place."""

    def _repr_html_(self) -> str:
        page = html.escape(self.read_text(encoding="utf-8"))
        # a sandbox without the notebook's origin: the page needs nothing from it
        style = 'style="border: 0" width="100%" height="860"'
        return f'<iframe sandbox="allow-scripts allow-downloads" title="Edgewise report" {style} srcdoc="{page}"></iframe>'


def report(folder: str | Path = "runs", out: str | Path | None = None) -> ReportPage:
    """Write the report on all results below a folder, by default to report.html in it; a notebook shows it in place."""
    path = Path(folder) / FILE if out is None else Path(out)
    content = report_html(collect(folder))
    return ReportPage(write_text(path, content))


def report_html(data: dict[str, Any]) -> str:
    """The page for what `collect` returns."""
    style, script = _asset("style.css"), _asset("app.js")
    title = f"{data.get('title') or 'Report'} · Edgewise"
    return Template(_asset("page.html")).substitute(
        csp=html.escape(_content_security_policy(style, script)),
        title=html.escape(title.encode(errors="replace").decode()),
        style=style,
        script=script,
        data=_json(data),
    )


def _content_security_policy(style: str, script: str) -> str:
    """Nothing from outside, and inside only the page's own style sheet and program, by their hashes."""
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
    except ValueError:  # NaN and infinity are not JSON: a browser would refuse all of it
        text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))
    except TypeError as error:
        raise EdgewiseError(f"the results cannot be written as JSON: {first_line(error)}") from error
    return text.translate(_ESCAPES)


def _finite(value: Any) -> Any:
    """The same with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _asset(name: str) -> str:
    try:
        return (files("edgewise.reporting") / "assets" / name).read_text(encoding="utf-8")
    except OSError as error:
        raise EdgewiseError(
            f"{name} of the report is missing; in a clone, `npm ci && npm run build` in report/ builds it"
        ) from error
