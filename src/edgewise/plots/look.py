"""The arguments that all plot functions share: where a figure is drawn, how large, and in which words and colours.

    result.plot(ax=axes[0, 1])                      # in a subplot
    result.plot(theme="slides", title="")           # large text, no title
    result.plot(width=5.5, names=["GPT-2", "ours"], colours=["#888", "#06c"])

A figure is always laid out for paper, at 8 points; a theme scales all of it. In a subplot that is too low for a figure that
places everything itself, the figure is scaled down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, cast

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection, PathCollection
from matplotlib.colors import Colormap, is_color_like
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.text import Annotation, Text

from edgewise.core.errors import EdgewiseError

Theme = Literal["paper", "slides"]
SCALES: dict[str, float] = {"paper": 1.0, "slides": 1.9}
"""8 points become 15 on slides, a page of 7 inches one of 13.3."""


class LookArguments(TypedDict, total=False):
    """Keyword arguments of every plot function; one that a figure has no use for is refused."""

    ax: Axes | None
    """Axes to draw in, instead of a figure of its own; they are turned off where the figure needs several."""
    title: str | None
    """Instead of the figure's own title; empty for none."""
    names: Sequence[str] | None
    """Of the models, instead of their own."""
    colours: Sequence[str] | None
    """Of the models, instead of grey and blue."""
    cmap: str | Colormap | None
    """Of attention weights, instead of white to dark blue."""
    width: float | None
    """In inches; 3.4 or 7 on paper if not given."""
    theme: Theme
    """paper (8 points) or slides (15 points)."""
    caption: bool
    """Draw a caption below that explains the figure to who sees it alone."""


@dataclass(frozen=True)
class Look:
    """Checked arguments of a plot function."""

    ax: Axes | None = None
    title: str | None = None
    names: Sequence[str] | None = None
    colours: Sequence[str] | None = None
    cmap: str | Colormap | None = None
    width: float | None = None
    theme: Theme = "paper"
    caption: bool = False

    @property
    def scale(self) -> float:
        return SCALES[self.theme]

    def inches(self, default: float) -> float:
        """Width to lay out a figure for, before it is scaled."""
        if self.ax is not None:
            return room_of(self.ax)[0] / 72 / self.scale
        return default if self.width is None else self.width / self.scale

    def named(self, names: Sequence[str]) -> list[str]:
        return [*(names if self.names is None else self.names)]

    def coloured(self, colours: Sequence[str]) -> list[str]:
        return [*(colours if self.colours is None else self.colours)]

    def titled(self, title: str) -> str:
        return title if self.title is None else self.title


def check_look(arguments: LookArguments, n_models: int, unused: Sequence[str] = ()) -> Look:
    """The arguments of a figure of so many models, or a sentence on what is wrong with them."""
    known = [field.name for field in fields(Look) if field.name not in unused]
    for name in arguments:
        if name not in known:
            raise EdgewiseError(f"this figure takes no `{name}`; it takes {', '.join(known)}")
    look = Look(**cast(dict[str, Any], arguments))
    for name in ("names", "colours"):
        given = getattr(look, name)
        if given is not None and (isinstance(given, str) or len(given) != n_models):
            raise EdgewiseError(f"give `{name}` as a list with one for each model, {n_models} in all")
    wrong = [colour for colour in look.colours or () if not is_color_like(colour)]
    if wrong:
        raise EdgewiseError(f"{wrong[0]!r} in `colours` is no colour that matplotlib knows")
    if isinstance(look.cmap, str) and look.cmap not in mpl.colormaps:
        raise EdgewiseError(f"`cmap` {look.cmap!r} is no colour map that matplotlib knows")
    if look.width is not None and not 1 <= look.width <= 100:
        raise EdgewiseError(f"`width` is in inches, from 1 to 100, not {look.width}")
    if look.theme not in SCALES:
        raise EdgewiseError(f"`theme` is {' or '.join(SCALES)}, not {look.theme!r}")
    return look


def room_of(axes: Axes) -> tuple[float, float]:
    """Width and height of axes in points."""
    figure = root_figure(axes)
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
    box = axes.get_window_extent()
    return float(72 * box.width / figure.dpi), float(72 * box.height / figure.dpi)


def root_figure(axes: Axes) -> Figure:
    """The figure that axes are in, however deep."""
    return cast(Figure, axes.get_figure(root=True))


def scale_artists(root: Artist, scale: float) -> None:
    """Scale all that is measured in points: text, lines, markers, arrowheads, ticks."""
    if scale == 1:
        return
    for artist in root.findobj():
        if isinstance(artist, Text):
            artist.set_fontsize(float(artist.get_fontsize()) * scale)
            if isinstance(artist, Annotation) and artist.anncoords == "offset points":
                x, y = artist.xyann
                artist.xyann = (scale * x, scale * y)
        elif isinstance(artist, Line2D):
            artist.set_linewidth(artist.get_linewidth() * scale)
            artist.set_markersize(artist.get_markersize() * scale)
            artist.set_markeredgewidth(artist.get_markeredgewidth() * scale)
        elif isinstance(artist, Patch):
            artist.set_linewidth(artist.get_linewidth() * scale)
            if isinstance(artist, FancyArrowPatch):
                artist.set_mutation_scale(artist.get_mutation_scale() * scale)
        elif isinstance(artist, Collection):
            artist.set_linewidth([float(width) * scale for width in np.atleast_1d(artist.get_linewidth())])
            if isinstance(artist, PathCollection) and len(artist.get_sizes()):
                artist.set_sizes(artist.get_sizes() * scale**2)
        elif isinstance(artist, Axes):
            for axis in (artist.xaxis, artist.yaxis):
                pad = axis.get_tick_params().get("pad", 3.5)
                axis.set_tick_params(pad=pad * scale)
                axis.labelpad *= scale
