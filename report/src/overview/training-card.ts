// The post-training: density and loss during training, and evaluations before and after.
import type { Training } from "../data";
import { selectedTraining } from "../selection";
import { card } from "../ui/card";
import { chart, type Series } from "../ui/chart";
import { colour } from "../ui/colour";
import { add, el, onResize, replace, select, zoom } from "../ui/dom";
import { indexChoices, percent, plural, shortNumber, signed, visible } from "../ui/format";
import type { Context, View } from "../ui/view";
import { missedBy } from "./tolerance";

export function trainingCard({ report, store }: Context): View {
  let pictures: SVGSVGElement[] = [];
  const training = () => selectedTraining(report, store.state)!;
  const { section, body } = card(
    store,
    "Post-training",
    "During training: density, the share of attention edges that are open, held-out loss above the dense model's, and KL from the dense model. The dashed line is the tolerance; dots: at the end, on all held-out text.",
    "training",
    {
      pictures: () => pictures,
      rows: () => [["tokens", "density", "delta_ce", "kl"], ...training().checks],
      value: () => training(),
    },
  );
  const runs = el("div", { class: "controls" });
  const stage = el("div", { class: "pair" });
  const details = el("div", {});
  add(body, runs, stage, details);
  const draw = (width: number) => {
    if (!training().checks.length) return replace(stage, el("p", { class: "quiet" }, "There is no log of this run."));
    pictures = charts(training(), width > 680 ? (width - 24) / 2 : width);
    replace(stage, ...pictures);
  };
  const update = () => {
    const names = report.trainings.map(({ run, model }) => visible(run && run !== "." ? run : model, 60));
    const index = report.trainings.indexOf(training());
    const choose = (chosen: number) => store.set({ training: chosen });
    const name = names[index] && el("p", { class: "prompt" }, "Run ", el("b", {}, names[index]));
    replace(runs, names.length > 1 ? select("Run", indexChoices(names), index, choose) : name);
    replace(details, facts(training()), evaluations(training()));
    if (stage.clientWidth) draw(stage.clientWidth / zoom());
  };
  onResize(stage, (width) => draw(width / zoom()));
  return { element: section, update };
}

function charts(training: Training, width: number): SVGSVGElement[] {
  const { checks, tolerance, kl, delta_ce: delta } = training;
  const missed = missedBy(training);
  const end = training.tokens ?? checks[checks.length - 1]![0];
  const divergences = checks.flatMap(([tokens, , , divergence]): [number, number][] =>
    typeof divergence === "number" ? [[tokens, divergence]] : [],
  );
  const atEnd = (name: string, value: number | null | undefined, usual: string, isMissed: boolean): Series[] =>
    typeof value === "number"
      ? [{ name: `${name} on all held-out text`, colour: isMissed ? colour("mark") : usual, points: [[end, value]], dots: true }]
      : [];
  const density = chart({
    width,
    label: "Density",
    xLabel: "tokens",
    yLabel: "open edges",
    format: (value) => percent(value, value < 0.1 && value > 0 ? 1 : 0),
    series: [{ name: "Open edges", colour: colour("twin"), points: checks.map(([tokens, open]) => [tokens, open]) }],
  });
  const loss = chart({
    width,
    label: "Loss above the dense model's",
    xLabel: "tokens",
    yLabel: "nats above dense",
    series: [
      { name: "Loss", colour: colour("twin"), points: checks.map(([tokens, , above]) => [tokens, above]) },
      ...(divergences.length ? [{ name: "KL", colour: colour("dense"), points: divergences }] : []),
      ...atEnd("Loss", delta, colour("twin"), missed.loss),
      ...atEnd("KL", kl, colour("dense"), missed.kl),
    ],
    target: tolerance ? { value: tolerance, label: `tolerance ${shortNumber(tolerance)}` } : undefined,
  });
  return [density, loss];
}

function facts(training: Training): HTMLElement {
  const { delta_ce: delta, tolerance, kl } = training;
  const missed = missedBy(training);
  const misses = `misses its tolerance of ${shortNumber(tolerance)}`;
  const values: [unknown, string, boolean?][] = [
    [training.model, "model"],
    [typeof delta === "number" ? signed(delta, 4) : null, missed.loss ? `loss, ${misses}` : "loss above dense", missed.loss],
    [typeof kl === "number" ? kl.toFixed(4) : null, missed.kl ? `KL, ${misses}` : "KL from dense", missed.kl],
    [percent(training.density, 1), "open edges"],
    [training.recipe, "recipe"],
    [training.tokens?.toLocaleString("en"), "tokens"],
    [training.heads_closed === null ? null : `${training.heads_closed} of ${training.heads}`, "heads closed"],
    [training.seconds ? duration(training.seconds) : null, "time"],
    [training.seed, "seed"],
  ];
  const known = values.filter(([value]) => value !== null && value !== undefined);
  return el(
    "dl",
    { class: "facts" },
    ...known.map(([value, name, isBad]) =>
      el("div", isBad ? { class: "missed" } : {}, el("dt", {}, name), el("dd", {}, visible(String(value), 40))),
    ),
  );
}

const duration = (seconds: number): string =>
  seconds < 120
    ? `${Math.round(seconds)} s`
    : seconds < 7200
      ? `${Math.round(seconds / 60)} min`
      : `${(seconds / 3600).toFixed(1)} h`;

/** The table of evaluations of the dense and the sparse model. */
function evaluations(training: Training): HTMLElement | null {
  const { dense, sparse } = training.tasks ?? {};
  if (!dense || !sparse) return null;
  const names = Object.keys(dense).filter((name) => name in sparse);
  const header = ["Measure", "Dense", "Sparse"].map((name) => el("th", { scope: "col" }, name));
  const row = (name: string) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, visible(name, 40)),
      el("td", {}, shortNumber(dense[name])),
      el("td", {}, shortNumber(sparse[name])),
    );
  return el(
    "details",
    {},
    el("summary", {}, `Evaluation before and after: ${plural(names.length, "measure")}`),
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Evaluation before and after" },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, ...header)),
        el("tbody", {}, ...names.map(row)),
      ),
    ),
  );
}
