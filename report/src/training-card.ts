// The post-training: how edges were closed, and what it cost.
import { card } from "./card";
import { chart } from "./chart";
import { colour } from "./colour";
import type { Training } from "./data";
import { add, el, onResize, replace, zoom } from "./dom";
import type { Context, View } from "./view";
import { count, percent, short, visible } from "./words";

export function trainingCard({ store }: Context, training: Training): View {
  let pictures: SVGSVGElement[] = [];
  const { section, body } = card(
    store,
    "Post-training",
    "Left, the share of edges that are open as training goes on; right, what that costs in loss. The dashed line is the loss tolerance.",
    "training",
    {
      pictures: () => pictures,
      rows: () => [["tokens", "density", "delta_ce"], ...training.checks],
      value: () => training,
    },
  );
  const charts = el("div", { class: "pair" });
  const facts = [
    [training.model, "model"],
    [training.recipe, "recipe"],
    [training.tokens?.toLocaleString("en"), "tokens"],
    [training.heads_closed === null ? null : `${training.heads_closed} of ${training.heads}`, "heads closed"],
    [training.seconds ? duration(training.seconds) : null, "time"],
    [training.seed, "seed"],
  ].filter(([value]) => value !== null && value !== undefined);
  add(
    body,
    charts,
    el(
      "dl",
      { class: "facts" },
      ...facts.map(([value, name]) => el("div", {}, el("dt", {}, name), el("dd", {}, visible(String(value), 40)))),
    ),
    kept(training),
  );
  const draw = (width: number) => {
    if (!training.checks.length) return replace(charts, el("p", { class: "quiet" }, "There is no log of this run."));
    const wide = width > 680 ? (width - 24) / 2 : width;
    const edges = chart({
      width: wide,
      label: "Open edges",
      xLabel: "tokens",
      yLabel: "edges open",
      format: (v) => percent(v, v < 0.1 && v > 0 ? 1 : 0),
      series: [{ name: "Edges open", colour: colour("twin"), points: training.checks.map(([x, y]) => [x, y]) }],
    });
    const loss = chart({
      width: wide,
      label: "Loss above the dense model's",
      xLabel: "tokens",
      yLabel: "loss above dense",
      series: [{ name: "Loss", colour: colour("twin"), points: training.checks.map(([x, , y]) => [x, y]) }],
      mark: training.tolerance ? { at: training.tolerance, label: `tolerance ${short(training.tolerance)}` } : undefined,
    });
    pictures = [edges, loss];
    replace(charts, ...pictures);
  };
  onResize(charts, (width) => draw(width / zoom()));
  return { element: section, update: () => charts.clientWidth && draw(charts.clientWidth / zoom()) };
}

const duration = (seconds: number): string =>
  seconds < 120
    ? `${Math.round(seconds)} s`
    : seconds < 7200
      ? `${Math.round(seconds / 60)} min`
      : `${(seconds / 3600).toFixed(1)} h`;

/** What the model could do before, and can still. */
function kept(training: Training): HTMLElement | null {
  const { dense, sparse } = training.tasks ?? {};
  if (!dense || !sparse) return null;
  const keys = Object.keys(dense).filter((key) => key in sparse);
  return el(
    "details",
    {},
    el("summary", {}, `What it could do before and can still: ${count(keys.length, "measure")}`),
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Before and after" },
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el("tr", {}, ...["Measure", "Before", "After"].map((name) => el("th", { scope: "col" }, name))),
        ),
        el(
          "tbody",
          {},
          ...keys.map((key) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, visible(key, 40)),
              el("td", {}, short(dense[key])),
              el("td", {}, short(sparse[key])),
            ),
          ),
        ),
      ),
    ),
  );
}
