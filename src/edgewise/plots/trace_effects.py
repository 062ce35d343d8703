"""Predicted and measured effects of a trace's ablations: is the trace right about the model?

    traces = Traces.load("runs/trace")
    save_figure(draw_effects(traces), "runs/trace-effects")

A row for each model. Left: the effect of each feature, head and token in the replaced model against the effect measured in
the model. Right: the largest measured effects, split into what goes along values (the graph), by moving attention, by the
norms, and by what the MLPs do beyond their features.
"""

from collections.abc import Iterable, Sequence
from typing import Unpack

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgewise.core.errors import EdgewiseError
from edgewise.core.text import model_titles, visible
from edgewise.plots.look import LookArguments, check_look
from edgewise.plots.style import DENSE, MARK, PAGE, SPARSE, TARGET, picture, shown
from edgewise.tracing.result import Trace
from edgewise.tracing.schema import Intervention

KINDS = {"feature": ("o", "#0b3c8c"), "head": ("s", "#d55e00"), "token": ("^", "#2a9d5c")}
PARTS = {
    "values": ("values", SPARSE),
    "attention": ("moving attention", MARK),
    "norms": ("norms", TARGET),
    "errors": ("MLPs beyond features", DENSE),
}
_LARGEST, _HEIGHT = 12, 2.5


def draw_effects(traces: Trace | Iterable[Trace], **look: Unpack[LookArguments]) -> Figure:
    """Draw the predicted against the measured effects of a trace, or of two."""
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not any(trace.interventions for trace in traces):
        raise EdgewiseError("these traces hold no interventions: trace the prompt again")
    checked = check_look(look, len(traces), unused=["cmap", "colours"])
    names = checked.named(model_titles([trace.model for trace in traces], [trace.kind for trace in traces]))
    with picture(checked, (PAGE, (_HEIGHT + 0.3) * len(traces) + 0.3), "", _caption(traces[-1])) as figure:
        axes = figure.subplots(len(traces), 2, squeeze=False, width_ratios=(1, 1.5))
        for (left, right), trace, name in zip(axes, traces, names, strict=True):
            draw_scatter(left, trace, name)
            draw_parts(right, trace)
        axes[-1][0].set_xlabel("measured in the model")
        axes[-1][1].set_xlabel(f"change of {traces[-1].measured_on}")
        axes[0][1].legend(
            loc="lower right", bbox_to_anchor=(1, 1), ncols=5, columnspacing=0.9, handlelength=1
        )
    return shown(figure)


def draw_scatter(axes: Axes, trace: Trace, title: str) -> None:
    """Effects in the replaced model against those measured in the model, with their correlations."""
    for kind, (marker, colour) in KINDS.items():
        tested = [i for i in trace.interventions if i.kind == kind]
        r = trace.metrics.get(f"{kind}_correlation_replaced")
        label = f"{len(tested)} {kind}s" + ("" if r is None else f", r = {r:.2f}")
        style = {"s": 14, "marker": marker, "color": colour, "alpha": 0.6, "linewidths": 0}
        axes.scatter([i.actual for i in tested], [i.replaced for i in tested], label=label, **style)
    axes.axline((0, 0), slope=1, color="#a5adb8", linewidth=0.6, zorder=0)
    axes.set(ylabel=f"{title}\nin the replaced model")
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1), handletextpad=0.1, borderpad=0.2, labelspacing=0.2
    )


def draw_parts(axes: Axes, trace: Trace) -> None:
    """The largest effects as stacked bars of their parts; a dot at their sum, which is what is measured."""
    tested = sorted(trace.interventions, key=lambda i: -abs(i.actual))[:_LARGEST][::-1]
    below, above = [0.0] * len(tested), [0.0] * len(tested)
    for part, (label, colour) in PARTS.items():
        values = [getattr(i, part) for i in tested]
        starts = [above[n] if value > 0 else below[n] for n, value in enumerate(values)]
        axes.barh(range(len(tested)), values, left=starts, color=colour, height=0.7, label=label)
        above = [a + max(v, 0.0) for a, v in zip(above, values, strict=True)]
        below = [b + min(v, 0.0) for b, v in zip(below, values, strict=True)]
    axes.plot(
        [i.actual for i in tested], range(len(tested)), "o", color="black", markersize=3, label="measured"
    )
    axes.axvline(0, color="#222222", linewidth=0.6)
    axes.set_yticks(range(len(tested)), [component_name(trace, i) for i in tested])


def component_name(trace: Trace, intervention: Intervention) -> str:
    """L4H1, a token's text with its position, or a feature's layer and number with the token where it is."""
    if intervention.kind == "head":
        name = intervention.what
    else:
        *feature, position = intervention.what.split("_")
        where = f"“{visible(trace.tokens[int(position)], 12)}” ({int(position) + 1})"
        name = where if intervention.kind == "token" else f"L{feature[0]}/{feature[1]} at {where}"
    if intervention.route == "attention" and intervention.moved:
        name += f" → {intervention.moved[0][0]}"
    return name


def _caption(trace: Trace) -> str:
    tested: Sequence[Intervention] = trace.interventions
    return (
        f"Validation by intervention: {len(tested)} components are ablated one at a time, and the change of the "
        f"{trace.measured_on} is measured. Left: against the same ablation in the replaced model (features instead of MLPs, "
        "constant errors). Right: the largest effects; the parts add up to the dot exactly. → names the head whose "
        "attention a component moves most, where that is its largest part."
    )
