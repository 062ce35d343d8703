"""The style of all figures, and how they are saved: SVG, PDF and PNG, text as text, the same bytes for the same data."""

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure

from edgewise.core.errors import EdgewiseError
from edgewise.core.files import write_atomically
from edgewise.core.text import visible
from edgewise.plots.look import Look, root_figure, scale_artists

Format = Literal["svg", "pdf", "png"]
FORMATS: tuple[Format, ...] = ("svg", "pdf", "png")
DENSE, SPARSE, TARGET, MARK = "#7f7f7f", "#0b3c8c", "#d55e00", "#d62728"
"""The dense model, its twin, a threshold, a marked cell: distinguishable by the colour-blind too."""
BLUES = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#9ec1e6", "#2a6fbf", "#08306b"])
"""Attention weights: white is exactly 0, dark blue is 1."""
COLUMN, PAGE = 3.4, 7.0
"""Widths of a paper's column and of its page, in inches."""

_STYLE: dict[Any, Any] = {
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
    "image.composite_image": False,  # each attention map stays an image of its own
    "savefig.dpi": 200,
}
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib settings of all figures, inside this block."""
    with mpl.rc_context(_STYLE):
        yield


class Picture(Figure):
    """A figure that a notebook shows whether or not anything there has imported pyplot."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        with _quiet_style():
            self.savefig(png, format="png", metadata=_NO_DATE["png"])
        return png.getvalue()


@contextmanager
def picture(
    look: Look, size: tuple[float, float], title: str, caption: str = ""
) -> Iterator[Picture | SubFigure]:
    """A figure to draw on inside this block, its size in inches (on paper); the place of `look.ax` if that is given.

    Laid out once, at the end: showing it changes nothing.
    """
    with _quiet_style():
        width, height = look.inches(size[0]), size[1]
        figure = Picture(figsize=(width, height), layout="constrained") if look.ax is None else _cell(look.ax)
        small = 6.0
        # a letter is a little more than half as wide as the font size
        if title := look.titled(title):
            figure.suptitle(textwrap.fill(title, int(width * 72 / (8 * 0.57))), fontsize=8, x=0.01, ha="left")
        if look.caption and caption:
            lines = textwrap.fill(caption, int(width * 72 / (small * 0.54)), break_on_hyphens=False)
            figure.supxlabel(lines, fontsize=small, x=0.01, ha="left", color="#444444")
        yield figure
        if isinstance(figure, Picture):
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            figure.set_size_inches(look.scale * width, look.scale * height)
        scale_artists(figure, look.scale)


def shown(figure: Picture | SubFigure) -> Figure:
    """The figure that a plot function returns: of a subplot, the whole."""
    return figure if isinstance(figure, Picture) else cast(Figure, figure.get_figure(root=True))


def _cell(axes: Axes) -> SubFigure:
    """A subfigure in place of a subplot, for a figure that needs several axes; the subplot's own are turned off."""
    figure, spec = axes.get_figure(), axes.get_subplotspec()
    if figure is None or spec is None or spec is not spec.get_topmost_subplotspec():
        raise EdgewiseError(
            "this figure needs several axes: give an `ax` of a plain grid, as from plt.subplots"
        )
    axes.axis("off")
    root = root_figure(axes)
    if root.get_layout_engine() is None:
        root.set_layout_engine("constrained")  # else labels would run into the neighbours
    return figure.add_subfigure(spec)


@contextmanager
def _quiet_style() -> Iterator[None]:
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # an emoji is missing in the font: PNG and PDF show a box, a viewer of the SVG the emoji
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        yield


def save_figure(figure: Figure, path: str | Path, formats: Sequence[Format] = FORMATS) -> list[Path]:
    """Write `path`.svg, .pdf and .png, making the folder; gives the paths."""
    path = Path(path)
    paths = [path.with_name(f"{path.name}.{format}") for format in formats]
    with _quiet_style():
        for path, format in zip(paths, formats, strict=True):
            save = partial(figure.savefig, format=format, metadata=_NO_DATE[format])
            write_atomically(path, save)
    return paths


def model_colours(kinds: Sequence[str]) -> list[str]:
    """Grey for the dense model, blue for its twin; of two models of one kind, grey for the first."""
    if len(kinds) == 2 and kinds[0] == kinds[1]:
        return [DENSE, SPARSE]
    return [DENSE if kind == "dense" else SPARSE for kind in kinds]


def model_name(name: str, max_length: int = 28) -> str:
    """A model's name; of a long path, the end."""
    name = visible(name, 1000)
    return name if len(name) <= max_length else "…" + name[1 - max_length :]
