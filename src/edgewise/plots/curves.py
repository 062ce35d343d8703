"""Circuit curves: share of a task's effect that the k most important heads or edges explain, a line for each model."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Unpack

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, MultipleLocator

from edgewise.circuits.result import CircuitResult, ComponentCircuit
from edgewise.core.text import visible
from edgewise.plots.look import LookArguments, check_look
from edgewise.plots.style import COLUMN, TARGET, Picture, model_colours, model_name, picture, shown

LOWEST, HIGHEST = -0.5, 1.6
"""Limits of the vertical axis; the caption says if a curve exceeds them."""

_NOTHING = 0.03  # of the effect: a curve below it has not begun

Kind = Literal["heads", "edges"]


class _Series(NamedTuple):
    """One model's circuit of heads, or of edges."""

    label: str
    colour: str
    circuit: ComponentCircuit | None


def draw_curves(result: CircuitResult, **look: Unpack[LookArguments]) -> Figure:
    """Draw one panel for heads and one for edges, with the ratio of the two models' circuits at the threshold."""
    kinds: list[Kind] = [
        kind for kind in ("heads", "edges") if any(getattr(model, kind) for model in result.models)
    ]
    title = f"{visible(result.task, 40)}: effect explained by the {' or '.join(kinds) or 'heads'} kept"
    checked = check_look(look, len(result.models), unused=["cmap"])
    colours = checked.coloured(model_colours([model.kind for model in result.models]))
    names = checked.named([f"{model_name(model.model)} ({model.kind})" for model in result.models])
    height = (2.9 if checked.caption else 2.3) if kinds else 1.6
    with picture(checked, (COLUMN, height), title, _caption(result, kinds)) as figure:
        if not kinds:
            axes = figure.subplots()
            axes.axis("off")
            axes.text(0.5, 0.5, "no circuit was found", ha="center", va="center")
            return shown(figure)
        grid = figure.add_gridspec(3, len(kinds), height_ratios=[0.01, 8, len(result.models)])
        legend = figure.add_subplot(grid[0, :])
        legend.axis("off")
        for column, kind in enumerate(kinds):
            axes = _draw_kind(figure, grid, column, kind, result, names, colours)
            if column == 0:
                handles, labels = axes.get_legend_handles_labels()
                n_columns = 2 if sum(map(len, labels)) <= 42 else 1  # as many as fit
                if any(model.heads and model.heads.minimal for model in result.models):
                    handles += [_mark("o"), _mark("D")]
                    labels += ["ranked", "minimal"]
                legend.legend(
                    handles, labels, loc="lower left", ncols=n_columns, borderaxespad=0, borderpad=0
                )
    return shown(figure)


def _draw_kind(
    figure: Picture | SubFigure,
    grid: GridSpec,
    column: int,
    kind: Kind,
    result: CircuitResult,
    names: Sequence[str],
    colours: Sequence[str],
) -> Axes:
    """The curves of heads or of edges, and below them the circuit sizes of single prompts."""
    axes = figure.add_subplot(grid[1, column])
    below = figure.add_subplot(grid[2, column], sharex=axes)
    series = [
        _Series(name, colour, getattr(model, kind))
        for model, name, colour in zip(result.models, names, colours, strict=True)
    ]
    lowest, highest = _range(result)
    axes.set_ylim(max(LOWEST, lowest) - 0.06, min(HIGHEST, highest) + 0.08)
    _draw_curves(axes, kind, series, result)
    _draw_per_prompt(below, kind, series)
    if column == 0:
        axes.set_ylabel(f"share of the\n{result.metric}")
        below.set_ylabel("each\nprompt", rotation=0, ha="right", va="center", fontsize=6)
    else:
        axes.tick_params(labelleft=False)
    return axes


def _draw_curves(axes: Axes, kind: Kind, series: Sequence[_Series], result: CircuitResult) -> None:
    """The curve of each model with its band, the threshold, and the ratio of what the models need there."""
    circuits = [one.circuit for one in series]
    _set_scale(axes, kind, [circuit for circuit in circuits if circuit])
    axes.axhline(result.threshold, color=TARGET, ls="--", lw=0.8, zorder=1)
    for label, colour, circuit in series:
        if circuit is None:
            axes.plot([], [], color=colour, label=f"{label}: none found")
            continue
        curve = circuit.prefix.curve
        axes.plot(curve.counts, curve.explained, color=colour, label=label)
        if curve.lower:
            axes.fill_between(curve.counts, curve.lower, curve.upper, color=colour, alpha=0.25, lw=0)
        prefix_share = np.interp(circuit.prefix.needed, curve.counts, curve.explained)
        axes.plot(circuit.prefix.needed, prefix_share, "o", color=colour, ms=3.5)
        _draw_path(axes, circuit, colour)
    axes.yaxis.set_major_locator(MultipleLocator(0.5))
    axes.tick_params(labelbottom=False)
    axes.grid(alpha=0.2, lw=0.5)
    sizes = " → ".join(f"{circuit.best.size:,}" if circuit else "none" for circuit in circuits)
    axes.set_title(f"{kind}: {sizes}")
    first, last = circuits[0], circuits[-1]
    if len(circuits) == 2 and first and last and last.best.size:
        ratio = first.best.size / last.best.size
        _draw_ratio(axes, first.best.size, last.best.size, result.threshold, ratio)


def _mark(marker: str) -> Line2D:
    """The mark of a circuit in the legend, in no model's colour."""
    return Line2D([], [], ls="", marker=marker, color="#444444", ms=3.5)


def _draw_path(axes: Axes, circuit: ComponentCircuit, colour: str) -> None:
    """The circuits that the joint search went through, and the minimal one, by what it explains of the held-out prompts."""
    if circuit.minimal is None:
        return
    path, beyond = circuit.minimal.path, circuit.minimal.beyond
    axes.plot(path.sizes, path.fit, color=colour, ls=":", lw=1.1)
    axes.plot(beyond.sizes, beyond.fit, color=colour, ls=":", lw=1.1, alpha=0.4)
    axes.plot(
        circuit.minimal.size,
        circuit.minimal.explained.held_out,
        "D",
        color=colour,
        ms=3.5,
        mec="white",
        mew=0.4,
    )


def _draw_ratio(axes: Axes, first: int, second: int, threshold: float, ratio: float) -> None:
    """An arrow along the threshold, from the size of the first model's circuit to that of the second."""
    if first != second:
        arrow = {
            "arrowstyle": "-|>",
            "color": TARGET,
            "lw": 1.2,
            "shrinkA": 2,
            "shrinkB": 2,
            "mutation_scale": 7,
        }
        axes.annotate("", (second, threshold), (first, threshold), arrowprops=arrow)
    to_axes = axes.transData + axes.transAxes.inverted()
    left, right = sorted(to_axes.transform([(first, threshold), (second, threshold)])[:, 0])
    # curves rise: between them, right below the threshold and left above it there is room
    if right - left > 0.35:
        x, offset, align = (left + right) / 2, (0, -3), ("center", "top")
    elif right < 0.65:
        x, offset, align = right, (4, -3), ("left", "top")
    else:
        x, offset, align = left, (-4, 3), ("right", "bottom")
    axes.annotate(
        f"{ratio:.1f}x", (x, threshold), offset, xycoords=("axes fraction", "data"), textcoords="offset points",
        ha=align[0], va=align[1], color=TARGET, weight="bold",
        bbox={"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 0.5}, zorder=2.5,
    )  # fmt: skip


def _draw_per_prompt(axes: Axes, kind: Kind, series: Sequence[_Series]) -> None:
    """Circuit sizes of single prompts, each with its own ranking: range, quartiles and median."""
    for row, (_, colour, circuit) in enumerate(series):
        if circuit and circuit.prefix.needed_per_prompt:
            least, lower, median, upper, most = np.percentile(
                circuit.prefix.needed_per_prompt, [0, 25, 50, 75, 100]
            )
            axes.plot([least, most], [-row, -row], color=colour, lw=0.7)
            axes.plot([lower, upper], [-row, -row], color=colour, lw=4, alpha=0.5, solid_capstyle="butt")
            axes.plot(median, -row, "|", color=colour, ms=6, mew=1.4)
    axes.set_ylim(0.6 - len(series), 0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    totals = ", ".join(sorted({f"{one.circuit.total:,}" for one in series if one.circuit}))
    axes.set_xlabel(f"{kind} kept, of {totals}")


def _set_scale(axes: Axes, kind: Kind, circuits: Sequence[ComponentCircuit]) -> None:
    """A linear axis for heads; for edges, which are many, a logarithmic one, from where the first curve moves."""
    total = max(circuit.total for circuit in circuits)
    if kind == "heads":
        axes.set_xlim(-0.02 * total, 1.03 * total)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        return
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    begin = min(map(_begin, circuits))
    axes.set_xlim(0.8 * begin if begin else -0.1, 1.3 * total)
    powers = [10**power for power in range(len(str(total))) if 10**power >= 0.8 * begin]
    step = 1 + len(powers) // 5  # labels must not touch
    labels = [f"{p // 1000}k" if p >= 1000 else str(p) for p in powers]
    zero = [] if begin else [0]
    axes.set_xticks(
        [*zero, *powers], ["0"] * len(zero) + [x if i % step == 0 else "" for i, x in enumerate(labels)]
    )
    axes.minorticks_off()


def _begin(circuit: ComponentCircuit) -> int:
    """The last count up to which nothing is explained, at most a third of what is needed; 0 if that is the first of all."""
    curve, begin = circuit.prefix.curve, 0
    for count, explained in zip(curve.counts, curve.explained, strict=True):
        if abs(explained) > _NOTHING or 3 * count > max(circuit.prefix.needed, circuit.best.size):
            break
        begin = count
    return begin


def _range(result: CircuitResult) -> tuple[float, float]:
    """The lowest and the highest share of all curves and bands, at least 0 to 1."""
    circuits = [circuit for model in result.models for circuit in (model.heads, model.edges) if circuit]
    curves = [circuit.prefix.curve for circuit in circuits]
    shares = [x for curve in curves for x in (*curve.explained, *curve.lower, *curve.upper)]
    shares += [x for circuit in circuits if circuit.minimal for x in circuit.minimal.path.fit]
    return min(0.0, *shares, 0.0), max(1.0, *shares, 1.0)


def prompts_used(result: CircuitResult) -> str:
    """Number of prompts behind the curves, in words."""
    used = sorted({model.prompts - model.left_out for model in result.models if model.heads})
    return " or ".join(map(str, used)) + (" prompt" if used == [1] else " prompts")


def _caption(result: CircuitResult, kinds: Sequence[str]) -> str:
    """What a reader needs to know who sees the figure alone."""
    sentences = []
    if kinds:
        sentences.append(
            f"Mean over {prompts_used(result)} (line), the middle half of them (band); what is not kept is corrupted."
        )
        if "edges" in kinds:
            sentences.append(f"Edges ranked by {result.method}.")
        sentences.append(
            f"Dashed: {result.threshold:g} of the {result.metric}, with the smallest prefixes of the rankings (circles)."
        )
        if any(
            getattr(model, kind) and getattr(model, kind).minimal for model in result.models for kind in kinds
        ):
            sentences.append(
                "Dotted: the joint search, on the prompts it fits; diamonds: its minimal circuits, on held-out prompts."
            )
        sentences.append("Below: what each prompt needs with its own ranking (range, quartiles, median).")
    lowest, highest = _range(result)
    if lowest < LOWEST or highest > HIGHEST:
        sentences.append(f"Curves and bands reach from {lowest:.2g} to {highest:.2g}, beyond the picture.")
    sentences += [f"{visible(warning, 300)}." for warning in result.warnings]
    return " ".join(sentences)
