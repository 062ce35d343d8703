"""The picture of a run: density, multiplier and held-out loss over tokens."""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from edgewise.plots.look import LookArguments, check_look
from edgewise.plots.style import COLUMN, SPARSE, TARGET, model_name, picture, shown
from edgewise.training.sparsify.result import SparsifyResult


def draw_run(result: SparsifyResult, **look: Unpack[LookArguments]) -> Figure:
    """Density, multiplier of the penalty, and held-out loss over tokens: three panels."""
    lines, summary = result.log, result.summary
    steps = [line for line in lines if "expected_density" in line]
    checks = [line for line in lines if "held_out_ce" in line]
    kl = f"; KL from the dense model {summary['kl']:.4f}" if "kl" in summary else ""
    checked = check_look(look, 1, unused=["cmap"])
    (name,) = checked.named([model_name(str(summary["model"]))])
    title = f"Post-training of {name}: {summary['density']:.2%} of edges left"
    if summary["delta_ce"] > summary["tolerance"]:
        title += f", loss {summary['delta_ce']:+.3f} misses its tolerance of {summary['tolerance']:g}"
    caption = (
        f"Recipe {summary['recipe']}, seed {summary['seed']}. Held-out loss in nats per token; the target is the dense "
        f"model's {summary['dense_ce']:.3f} + {summary['tolerance']:g}{kl}."
    )
    # checks on the way see a part of the held-out text; only their distance from the dense model compares with the end
    losses = [summary["dense_ce"] + line["delta_ce"] for line in checks]
    # the first checks may be far above, and would hide whether the target is met
    highest = sorted(losses)[int(0.8 * (len(checks) - 1))]
    top = summary["dense_ce"] + max(4 * summary["tolerance"], 1.2 * (highest - summary["dense_ce"]))
    if max(losses) > top:
        caption += f" The highest, {max(losses):.3f}, is above the picture."
    (colour,) = checked.coloured([SPARSE])
    with picture(checked, (COLUMN, 4.2), title, caption) as figure:
        density, penalty, loss = figure.subplots(3, 1, sharex=True)
        _draw_density(density, steps, checks, colour)
        _draw_penalty(penalty, steps, colour)
        _draw_loss(loss, checks, summary, top, colour)
        for axes in (density, penalty, loss):
            axes.grid(alpha=0.2, lw=0.5)
    return shown(figure)


def _draw_density(axes: Axes, steps: list[dict[str, Any]], checks: list[dict[str, Any]], colour: str) -> None:
    """Expected density on the training text, and share of open edges on held-out text."""
    expected = [line["expected_density"] for line in steps]
    axes.plot(_millions(steps), expected, color=colour, alpha=0.35, lw=0.8, label="expected, training text")
    opened = [line["density"] for line in checks]
    axes.plot(_millions(checks), opened, color=colour, marker=".", ms=3, lw=1.2, label="open, held-out text")
    _logarithmic(axes, [*expected, *opened], lambda y: f"{100 * y:g} %")
    axes.legend(loc="best")
    axes.set_title("edges left")


def _draw_penalty(axes: Axes, steps: list[dict[str, Any]], colour: str) -> None:
    """The multiplier of the sparsity penalty."""
    betas = [line["beta"] for line in steps]
    axes.plot(_millions(steps), betas, color=colour, lw=1)
    _logarithmic(axes, betas, lambda y: f"{y:g}")
    axes.set_title("regularisation strength β")


def _draw_loss(
    axes: Axes, checks: list[dict[str, Any]], summary: dict[str, Any], top: float, colour: str
) -> None:
    """Held-out loss, and the dense model's plus the tolerance."""
    losses = [summary["dense_ce"] + line["delta_ce"] for line in checks]
    axes.plot(_millions(checks), losses, color=colour, marker=".", ms=3, lw=1.2)
    axes.axhline(summary["dense_ce"] + summary["tolerance"], color=TARGET, ls="--", lw=0.8)
    axes.set_ylim(summary["dense_ce"] - 2 * summary["tolerance"], top)
    compared = [line for line in checks if "held_out_kl" in line]
    divergences = [(line["tokens"] / 1e6, summary["dense_ce"] + line["held_out_kl"]) for line in compared]
    if divergences:
        axes.plot(*zip(*divergences, strict=True), color=colour, lw=0.8, ls=":", label="dense model's + KL")
        axes.legend(loc="best")
    axes.set_title("held-out loss (dashed: target)")
    axes.set_xlabel("million tokens")


def _logarithmic(axes: Axes, values: Sequence[float], text: Callable[[float], str]) -> None:
    """A logarithmic axis with plain numbers, also between powers of ten if there are few of them."""
    axes.set_yscale("log")
    span = max(values, default=1) / min((x for x in values if x > 0), default=1)
    locator = MaxNLocator(4) if span < 3 else LogLocator(subs=(1, 2, 5) if span < 50 else (1,))
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: text(y)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _millions(lines: list[dict[str, Any]]) -> list[float]:
    return [line["tokens"] / 1e6 for line in lines]
