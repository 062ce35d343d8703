"""The picture of a run: density, pressure and held-out loss over tokens."""

import json
from pathlib import Path
from typing import Any


def draw_run(folder: Path) -> Path:
    """Draw `run.png` from a run's log.jsonl and summary.json: what was removed, how hard it was pressed, what it cost."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    steps = [line for line in lines if "expected_density" in line]
    checks = [line for line in lines if "held_out_ce" in line]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    density, pressure, loss = figure.subplots(1, 3)
    blue, orange = "#2b6cb0", "#c05621"

    expected = [line["expected_density"] for line in steps]
    density.plot(_millions(steps), expected, color=blue, alpha=0.35, lw=1, label="expected, training text")
    opened = [line["density"] for line in checks]
    density.plot(_millions(checks), opened, color=blue, marker=".", lw=1.5, label="open, held-out text")
    density.set_yscale("log")
    percent = FuncFormatter(lambda y, _: f"{100 * y:g} %")
    density.yaxis.set_major_formatter(percent)
    density.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    density.yaxis.set_minor_formatter(percent)
    density.legend(frameon=False, loc="upper right", fontsize=9)
    density.set_title("Edges left")
    density.annotate(
        f"{summary['density']:.2%}", (_millions(checks[-1:])[0], checks[-1]["density"]),
        textcoords="offset points", xytext=(0, -14), ha="right",
    )  # fmt: skip

    pressure.plot(_millions(steps), [line["beta"] for line in steps], color=orange, lw=1.2)
    pressure.set_yscale("log")
    pressure.set_title("Regularisation strength β")

    # checks on the way see a part of the held-out text; only their distance from the dense model compares with the end
    losses = [summary["dense_ce"] + line["delta_ce"] for line in checks]
    loss.plot(_millions(checks), losses, color=blue, marker=".", lw=1.5)
    allowed = summary["dense_ce"] + summary["margin"]
    loss.axhline(
        allowed,
        color="black",
        ls="--",
        lw=1,
        label=f"target: dense {summary['dense_ce']:.3f} + {summary['margin']:g}",
    )
    # the first checks may be far above, and would hide whether the target is met
    highest = sorted(losses)[int(0.8 * (len(checks) - 1))]
    room = max(4 * summary["margin"], 1.2 * (highest - summary["dense_ce"]))
    loss.set_ylim(summary["dense_ce"] - 2 * summary["margin"], summary["dense_ce"] + room)
    loss.set_title("Held-out loss, nats per token")
    loss.legend(frameon=False, loc="upper right", fontsize=9)

    for axes in (density, pressure, loss):
        axes.set_xlabel("million tokens")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    figure.suptitle(f"{summary['model']}, recipe {summary['recipe']}, seed {summary['seed']}", fontsize=10)
    path = folder / "run.png"
    figure.savefig(path, dpi=150)
    return path


def _millions(lines: list[dict[str, Any]]) -> list[float]:
    return [line["tokens"] / 1e6 for line in lines]
