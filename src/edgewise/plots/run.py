"""The picture of a run: density, multiplier and held-out loss over tokens."""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from edgewise.plots.canvas import INK
from edgewise.plots.look import LookArguments, check_look
from edgewise.plots.style import COLUMN, MARK, SPARSE, TARGET, model_name, picture, shown
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
    if missed := _missed(summary):
        verb = "misses its" if len(missed) == 1 else "miss their"
        title += f"; {' and '.join(missed)} {verb} tolerance of {summary['tolerance']:g}"
    caption = (
        f"Recipe {summary['recipe']}, seed {summary['seed']}. Held-out loss in nats per token; the target is the dense "
        f"model's {summary['dense_ce']:.3f} + {summary['tolerance']:g}{kl}."
    )
    # checks on the way see a part of the held-out text; only their distance from the dense model compares with the end
    losses = [summary["dense_ce"] + line["delta_ce"] for line in checks]
    # the first checks may be far above, and would hide whether the target is met
    highest = sorted(losses)[int(0.8 * (len(checks) - 1))]
    above = max(highest - summary["dense_ce"], summary["delta_ce"], summary.get("kl", 0.0))
    top = summary["dense_ce"] + max(4 * summary["tolerance"], 1.2 * above)
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


def _missed(summary: dict[str, Any]) -> list[str]:
    """What has missed the tolerance, with its value."""
    delta, kl, tolerance = summary["delta_ce"], summary.get("kl"), summary["tolerance"]
    missed = [f"loss {delta:+.4f}"] if delta > tolerance else []
    if kl is not None and kl > tolerance and summary.get("constraint") != "loss":
        missed.append(f"KL {kl:.4f}")
    return missed


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
    axes.set_title("multiplier β of the sparsity penalty")


def _draw_loss(
    axes: Axes, checks: list[dict[str, Any]], summary: dict[str, Any], top: float, colour: str
) -> None:
    """Held-out loss, and the dense model's plus KL and plus the tolerance; diamonds: at the end, on all held-out text."""
    dense, tolerance = summary["dense_ce"], summary["tolerance"]
    losses = [dense + line["delta_ce"] for line in checks]
    axes.plot(_millions(checks), losses, color=colour, marker=".", ms=3, lw=1.2, label="loss")
    axes.axhline(dense + tolerance, color=TARGET, ls="--", lw=0.8)
    axes.set_ylim(dense - 2 * tolerance, top)
    compared = [line for line in checks if "held_out_kl" in line]
    if compared:
        divergences = [dense + line["held_out_kl"] for line in compared]
        axes.plot(
            _millions(compared),
            divergences,
            color=colour,
            lw=0.8,
            ls=":",
            marker=".",
            ms=2,
            label="dense + KL",
        )
    end, is_all = _millions(checks)[-1], {"ls": "", "marker": "D", "ms": 3.5, "zorder": 3}
    at_end = dense + summary["delta_ce"]
    axes.plot(end, at_end, color=MARK if at_end > dense + tolerance else colour, **is_all)
    if "kl" in summary:
        is_missed = summary["kl"] > tolerance and summary.get("constraint") != "loss"
        axes.plot(end, dense + summary["kl"], color=MARK if is_missed else colour, fillstyle="none", **is_all)
    axes.plot([], [], color=INK, label="at the end", **is_all)
    axes.legend(loc="upper left", ncols=3, columnspacing=1, handlelength=1.4)
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
