"""Edges per query of every head on held-out text: which heads a twin still uses, a dense model beside it."""

from typing import Unpack

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

from edgewise.measure.evaluation import Evaluation
from edgewise.measure.loss import Measured
from edgewise.plots.look import LookArguments, check_look
from edgewise.plots.style import BLUES, COLUMN, PAGE, model_name, picture, shown

_SHADES = LinearSegmentedColormap.from_list("edges", BLUES(np.linspace(0.2, 1, 256)))
_CLOSED = "#f0f0f0"


def draw_evaluation(evaluation: Evaluation, **look: Unpack[LookArguments]) -> Figure:
    """Draw a grid of heads for each model, layers upward; the darker, the more edges are open per query."""
    checked = check_look(look, len(evaluation), unused=["colours", "cmap"])
    names = checked.named([model_name(name) for name in evaluation])
    edges = [measured.edges_per_query_per_head.numpy() for measured in evaluation.values()]
    positive = np.concatenate([values[values > 0] for values in edges] or [np.ones(1)])
    lowest, highest = (positive.min(), positive.max()) if len(positive) else (1.0, 1.0)
    norm = LogNorm(min(lowest, highest / 10), highest)
    layers, tokens = max(len(values) for values in edges), next(iter(evaluation.values())).tokens
    height = min(6.0, 1.2 + 0.16 * layers)
    caption = (
        f"Open edges per query of each head, on {tokens:,} held-out tokens; grey: heads without an open edge. "
        "Loss in nats per token, density over all causal edges."
    )
    title = "Edges per query and head"
    with picture(checked, (COLUMN if len(edges) == 1 else PAGE, height), title, caption) as figure:
        grid = figure.subplots(1, len(edges), squeeze=False)[0]
        images = [
            _draw_model(axes, name, measured, norm)
            for axes, name, measured in zip(grid, names, evaluation.values(), strict=True)
        ]
        bar = figure.colorbar(
            images[0], ax=list(grid), label="edges per query", format=StrMethodFormatter("{x:g}")
        )
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return shown(figure)


def _draw_model(axes: Axes, name: str, measured: Measured, norm: LogNorm) -> AxesImage:
    edges = np.ma.masked_equal(measured.edges_per_query_per_head.numpy(), 0)
    colours = _SHADES.with_extremes(bad=_CLOSED)
    image = axes.imshow(
        edges, cmap=colours, norm=norm, origin="lower", aspect="auto", interpolation="nearest"
    )
    axes.set_title(f"{name}: loss {measured.ce:.4f}, density {measured.density:.2%}")
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return image
