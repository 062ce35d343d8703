"""One look for all figures: SVG, PDF and PNG from one call, text that stays text, the same bytes for the same data."""

import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

Format = Literal["svg", "pdf", "png"]
FORMATS: tuple[Format, ...] = ("svg", "pdf", "png")
DENSE, SPARSE, TARGET, MARK = "#7f7f7f", "#0b3c8c", "#d55e00", "#d62728"
"""The dense model, its twin, a line to reach, a cell to look at: told apart by the colour-blind too."""
BLUES = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#9ec1e6", "#2a6fbf", "#08306b"])
"""Attention weights: white is exactly 0, dark blue is 1."""
COLUMN, PAGE = 3.4, 7.0
"""Widths of a paper's column and of its page, in inches."""

_STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that figures look the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    "svg.hashsalt": "edgewise",
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a token may be a dollar sign
    "savefig.dpi": 200,
}
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
_MARKS = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": "␣"}
_LONGEST = 14


@contextmanager
def style() -> Iterator[None]:
    """Draw inside this block."""
    with mpl.rc_context(_STYLE):
        yield


def save_figure(figure: Figure, stem: str | Path, formats: Sequence[Format] = FORMATS) -> list[Path]:
    """Write `stem`.svg, .pdf and .png, making the folder."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{format}") for format in formats]
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # an emoji is missing in the font: the picture shows a box, the SVG's reader the emoji
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        for path, format in zip(paths, formats, strict=True):
            figure.savefig(path, format=format, metadata=_NO_DATE[format])
    return paths


def visible(token: str) -> str:
    """A token as a label: what cannot be seen is named, what is too long is cut."""
    text = token.strip(" ") or token or "∅"
    text = "".join(_MARKS.get(c, c) if c != " " or text.isspace() else c for c in text)
    text = "".join("�" if unicodedata.category(c)[0] == "C" else c for c in text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
