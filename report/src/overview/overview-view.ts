// Overview: key figures, notes, the table of tasks and the post-training.
import type { Report } from "../data";
import { selectedTask, selectedTraces, selectedTraining } from "../selection";
import type { State, Tab } from "../store";
import { carryingHeads } from "../trace/carrying-heads";
import { el, replace, type Child } from "../ui/dom";
import { modelTitles, percent, quoted, shortNumber, signed, visible } from "../ui/format";
import { describe } from "../ui/tooltip";
import type { Context, View } from "../ui/view";
import { hasCircuit, taskTable } from "./task-table";
import { missedText } from "./tolerance";
import { trainingCard } from "./training-card";

export function overviewView(context: Context): View {
  const { report, store } = context;
  const figures = el("div", { class: "figures" });
  const notes = [...report.notes, ...warnings(report)];
  const tasks = report.tasks.some(hasCircuit) ? taskTable(context) : null;
  const training = report.trainings.length ? trainingCard(context) : null;
  const element = el(
    "div",
    { class: "overview" },
    el("h2", { class: "unseen" }, "Key figures"),
    figures,
    notes.length > 0 && noteList(notes),
    tasks?.element,
    training?.element,
  );
  return {
    element,
    update: () => {
      replace(figures, ...keyFigures(report, store.state).map((figure) => figureButton(context, figure)));
      tasks?.update(null);
      training?.update(null);
    },
  };
}

const noteList = (notes: string[]): HTMLElement =>
  el(
    "aside",
    { class: "notes", "aria-label": "Notes" },
    el("b", {}, "Notes"),
    el("ul", {}, ...notes.map((note) => el("li", {}, visible(note, 400)))),
  );

const warnings = (report: Report): string[] => [
  ...new Set([
    ...report.tasks.flatMap((task) =>
      task.models.flatMap((model) => model.warnings.map((text) => `${task.task}, ${model.model}: ${text}`)),
    ),
    ...report.traces.flat().flatMap((trace) => trace.warnings.map((text) => `Trace of ${trace.model}: ${text}`)),
  ]),
];

interface KeyFigure {
  tab: Tab; // where it comes from
  value: Child[];
  label: string;
  comparison: string;
  description: string;
  missed?: boolean; // a tolerance
}

function figureButton({ store, tabs }: Context, { tab, value, label, comparison, description, missed }: KeyFigure): HTMLElement {
  const onclick = () => store.set({ tab: tabs.includes(tab) ? tab : "overview" });
  const button = el(
    "button",
    { type: "button", class: missed ? "figure missed" : "figure", onclick },
    el("span", { class: "value" }, ...value),
    el("span", { class: "label" }, label),
    el("span", { class: "aside" }, comparison),
  );
  return describe(button, description);
}

const keyFigures = (report: Report, state: State): KeyFigure[] =>
  [circuitFigure(report, state), densityFigure(report, state), lossFigure(report, state), traceFigure(report, state)].filter(
    (figure) => figure !== null,
  );

function circuitFigure(report: Report, state: State): KeyFigure | null {
  const chosen = selectedTask(report, state);
  const task = chosen && hasCircuit(chosen) ? chosen : report.tasks.find(hasCircuit);
  const circuit = task?.models[task.models.length - 1]?.head_circuit;
  if (!task || !circuit) return null;
  const names = modelTitles(task.models);
  const other = task.models.length > 1 ? task.models[0]?.head_circuit : null;
  const minimal = [other, circuit].map((one) => one && one.minimal);
  const [before, after] = minimal.every((size) => typeof size === "number")
    ? [minimal[0]!, minimal[1]!]
    : [other?.needed, circuit.needed];
  const arrow = el("span", { class: "arrow", "aria-label": "to", role: "img" }, "→");
  return {
    tab: "circuit",
    value: other ? [`${before}`, arrow, `${after}`] : [`${after}`],
    label: `heads explain ${percent(task.threshold)} of the effect on ${visible(task.task, 24)}`,
    comparison: other ? `of ${circuit.total}, ${names[0]} → ${names[1]}` : `of ${circuit.total} in ${names[0]}`,
    description: `The fewest heads that explain ${percent(task.threshold)} of the effect on ${task.task} (${task.metric}) when all others are patched with the activations of a corrupted prompt. Click for the curve.`,
  };
}

/** The model that circuits and traces are of: figures of another twin are not mixed in. */
function twinOf(report: Report, state: State): string | undefined {
  const models = selectedTask(report, state)?.models ?? selectedTraces(report, state);
  return models.find(({ kind }) => kind === "sparse")?.model;
}

interface Measured {
  name: string;
  density: number;
  perQuery: number | null;
  dense: number | null;
  sparse: number | null;
  delta: number | null;
  tolerance: number | null;
  missed: string; // what has missed it
}

/** Density and loss of the twin that the report is about: evaluated, or else those of the selected run. */
function measured(report: Report, state: State): Measured | null {
  const twin = twinOf(report, state);
  const of = twin === undefined ? undefined : report.evaluations[twin];
  if (twin !== undefined && of && of.density !== null) {
    const models = selectedTask(report, state)?.models ?? selectedTraces(report, state);
    const dense = report.evaluations[models[0]!.model]?.ce ?? null;
    const delta = dense === null || of.ce === null ? null : of.ce - dense;
    const name = visible(twin, 30);
    return { name, density: of.density, perQuery: of.edges_per_query, dense, sparse: of.ce, delta, tolerance: null, missed: "" };
  }
  const training = selectedTraining(report, state);
  if (!training) return null;
  return {
    name: visible(training.run && training.run !== "." ? training.run : training.model, 30),
    density: training.density,
    perQuery: training.edges_per_query,
    dense: training.dense_ce,
    sparse: training.sparse_ce,
    delta: training.delta_ce,
    tolerance: training.tolerance,
    missed: missedText(training),
  };
}

function densityFigure(report: Report, state: State): KeyFigure | null {
  const found = measured(report, state);
  if (found)
    return {
      tab: "maps",
      value: [percent(found.density, found.density < 0.01 ? 2 : 1)],
      label: `of attention edges are open in ${found.name}`,
      comparison: found.perQuery
        ? `${shortNumber(found.perQuery)} keys per query on average`
        : "on held-out text",
      description:
        "Density: of all pairs of a query and an earlier key, in all heads, the share whose gate is open on held-out text. A closed edge has an attention weight of exactly 0.",
    };
  const task = selectedTask(report, state);
  const edges = task?.models.map((model) => model.counts["open_token_edges"]);
  if (edges?.length !== 2 || !edges[0] || typeof edges[1] !== "number") return null;
  return {
    tab: "maps",
    value: [percent(edges[1] / edges[0], 1)],
    label: "of attention edges are open",
    comparison: `on prompts of ${visible(task!.task, 24)}`,
    description: "Open attention edges of the second model, as a share of the first model's.",
  };
}

function lossFigure(report: Report, state: State): KeyFigure | null {
  const found = measured(report, state);
  if (!found || found.delta === null) return null;
  const { dense, sparse, delta, tolerance, name, missed } = found;
  const losses = dense === null ? "nats per token" : `${dense.toFixed(3)} dense, ${sparse?.toFixed(3) ?? "–"} sparse`;
  return {
    tab: "overview",
    value: [signed(delta)],
    label: `loss of ${name} relative to the dense model`,
    comparison: missed || losses,
    missed: missed !== "",
    description: `Cross-entropy on held-out text, in nats per token: the sparse model's minus the dense model's.${tolerance === null ? "" : ` The loss tolerance was ${shortNumber(tolerance)}.`}`,
  };
}

function traceFigure(report: Report, state: State): KeyFigure | null {
  const traces = selectedTraces(report, state);
  const trace = traces[traces.length - 1];
  if (!trace) return null;
  const { heads, total } = carryingHeads(trace, trace.main_key, 0.8);
  const names = modelTitles(traces);
  return {
    tab: "trace",
    value: [`${heads.length}`],
    label: `of ${total} heads carry ${quoted(trace.tokens[trace.main_key], 14)} to ${quoted(trace.logits[0]?.[0], 14)}`,
    comparison:
      traces.length > 1
        ? `${carryingHeads(traces[0]!, trace.main_key, 0.8).heads.length} in ${names[0]}`
        : names[0]!,
    description:
      "The fewest heads that carry 80 % of the flow from this key to the last query, where the output is predicted. Click for the trace.",
  };
}
