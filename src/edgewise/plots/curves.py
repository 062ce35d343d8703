"""Circuit curves: how much of a task's effect the best k heads or edges explain, in the dense model and in its twin."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from edgewise.circuits.result import CircuitResult, ComponentCircuit, ModelCircuit
from edgewise.core.text import visible
from edgewise.plots.style import COLUMN, TARGET, model_colours, model_name, picture

LOWEST, HIGHEST = -0.5, 1.6
"""A curve may go beyond; the picture does not, and says so."""


def draw_curves(result: CircuitResult) -> Figure:
    """One panel for heads and one for edges, with the ratio of what the two models need at the threshold."""
    kinds = [kind for kind in ("heads", "edges") if any(getattr(m, kind) for m in result.models)]
    title = f"{visible(result.task, 40)}: effect explained by the {' or '.join(kinds) or 'heads'} kept"
    with picture(COLUMN, 2.9 if kinds else 1.6, title, _caption(result, kinds)) as figure:
        if not kinds:
            axes = figure.subplots()
            axes.axis("off")
            axes.text(0.5, 0.5, "no circuit was found", ha="center", va="center")
            return figure
        rows = [0.01, 8, len(result.models)]
        grid = figure.add_gridspec(3, len(kinds), height_ratios=rows)
        above = figure.add_subplot(grid[0, :])
        above.axis("off")
        low, high = _reach(result)
        for column, kind in enumerate(kinds):
            axes = figure.add_subplot(grid[1, column])
            own = figure.add_subplot(grid[2, column], sharex=axes)
            founds: list[ComponentCircuit | None] = [getattr(model, kind) for model in result.models]
            axes.set_ylim(max(LOWEST, low) - 0.06, min(HIGHEST, high) + 0.08)
            _draw_curves(axes, kind, founds, result)
            _draw_own(own, kind, founds, result.models)
            if column == 0:
                axes.set_ylabel(f"share of the\n{result.metric}")
                own.set_ylabel("each\nprompt", rotation=0, ha="right", va="center", fontsize=6)
                handles, names = axes.get_legend_handles_labels()
                columns = 2 if sum(map(len, names)) <= 42 else 1  # what fits
                above.legend(handles, names, loc="lower left", ncols=columns, borderaxespad=0, borderpad=0)
            else:
                axes.tick_params(labelleft=False)
    return figure


def _draw_curves(
    axes: Axes, kind: str, founds: Sequence[ComponentCircuit | None], result: CircuitResult
) -> None:
    _scale(axes, kind, max(found.total for found in founds if found))
    axes.axhline(result.threshold, color=TARGET, ls="--", lw=0.8, zorder=1)
    colours = model_colours([model.kind for model in result.models])
    for model, found, colour in zip(result.models, founds, colours, strict=True):
        label = f"{model_name(model.model)} ({model.kind})"
        if found is None:
            axes.plot([], [], color=colour, label=f"{label}: none found")
            continue
        curve = found.curve
        axes.plot(curve.counts, curve.explained, color=colour, label=label)
        if curve.lower:
            axes.fill_between(curve.counts, curve.lower, curve.upper, color=colour, alpha=0.25, lw=0)
        axes.plot(found.needed, found.faithfulness, "o", color=colour, ms=3.5)
    axes.yaxis.set_major_locator(MultipleLocator(0.5))
    axes.tick_params(labelbottom=False)
    axes.grid(alpha=0.2, lw=0.5)
    axes.set_title(f"{kind}: {' → '.join(f'{found.needed:,}' if found else 'none' for found in founds)}")
    ratio = result.ratios.get(kind)
    first, last = founds[0], founds[-1]
    if ratio and first and last:
        _draw_ratio(axes, first.needed, last.needed, result.threshold, ratio)


def _draw_ratio(axes: Axes, first: int, second: int, threshold: float, ratio: float) -> None:
    """An arrow along the threshold, from what the first model needs to what the second does."""
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
        place, offset, align = (left + right) / 2, (0, -3), ("center", "top")
    elif right < 0.65:
        place, offset, align = right, (4, -3), ("left", "top")
    else:
        place, offset, align = left, (-4, 3), ("right", "bottom")
    axes.annotate(
        f"{ratio:.1f}x", (place, threshold), offset, xycoords=("axes fraction", "data"), textcoords="offset points",
        ha=align[0], va=align[1], color=TARGET, weight="bold",
        bbox={"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 0.5}, zorder=2.5,
    )  # fmt: skip


def _draw_own(
    axes: Axes, kind: str, founds: Sequence[ComponentCircuit | None], models: Sequence[ModelCircuit]
) -> None:
    """What each prompt needs with its own ranking: range, quartiles and median."""
    for row, (found, colour) in enumerate(
        zip(founds, model_colours([model.kind for model in models]), strict=True)
    ):
        if found and found.needed_per_prompt:
            least, lower, median, upper, most = np.percentile(found.needed_per_prompt, [0, 25, 50, 75, 100])
            axes.plot([least, most], [-row, -row], color=colour, lw=0.7)
            axes.plot([lower, upper], [-row, -row], color=colour, lw=4, alpha=0.5, solid_capstyle="butt")
            axes.plot(median, -row, "|", color=colour, ms=6, mew=1.4)
    axes.set_ylim(0.6 - len(founds), 0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    total = ", ".join(sorted({f"{found.total:,}" for found in founds if found}))
    axes.set_xlabel(f"{kind} kept, of {total}")


def _scale(axes: Axes, kind: str, total: int) -> None:
    """Heads are counted; edges are so many that only a logarithm shows the few, with 0 in a place of its own."""
    if kind == "heads":
        axes.set_xlim(-0.02 * total, 1.03 * total)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        return
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.set_xlim(-0.1, 1.3 * total)
    powers = [10**power for power in range(len(str(total)))]
    step = 1 + len(powers) // 5  # labels must not touch
    labels = [f"{p // 1000}k" if p >= 1000 else str(p) for p in powers]
    axes.set_xticks([0, *powers], ["0", *(x if i % step == 0 else "" for i, x in enumerate(labels))])
    axes.minorticks_off()


def _reach(result: CircuitResult) -> tuple[float, float]:
    """The lowest and the highest share, at least from 0 to 1."""
    curves = [found.curve for model in result.models for found in (model.heads, model.edges) if found]
    shares = [x for curve in curves for x in (*curve.explained, *curve.lower, *curve.upper)]
    return min(0.0, *shares, 0.0), max(1.0, *shares, 1.0)


def prompts_used(result: CircuitResult) -> str:
    """How many prompts are behind the curves."""
    used = sorted({model.prompts - model.left_out for model in result.models if model.heads})
    return " or ".join(map(str, used)) + (" prompt" if used == [1] else " prompts")


def _caption(result: CircuitResult, kinds: Sequence[str]) -> str:
    """What a reader needs who finds the picture elsewhere."""
    parts = []
    if kinds:
        parts.append(
            f"Mean over {prompts_used(result)} (line), the middle half of them (band); what is not kept is corrupted."
        )
        if "edges" in kinds:
            parts.append(f"Edges ranked by {result.method}.")
        parts.append(
            f"Dashed: {result.threshold:g} of the {result.metric}, with the smallest circuits there."
        )
        parts.append("Below: what each prompt needs with its own ranking (range, quartiles, median).")
    low, high = _reach(result)
    if low < LOWEST or high > HIGHEST:
        parts.append(f"Curves and bands reach from {low:.2g} to {high:.2g}, beyond the picture.")
    parts += [f"{visible(warning, 300)}." for model in result.models for warning in model.warnings]
    return " ".join(parts)
