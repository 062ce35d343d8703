// Overview: key figures, notes, the table of tasks and the post-training.
import type { Report } from "../data";
import { selectedTask, selectedTraces } from "../selection";
import type { State, Tab } from "../store";
import { carryingHeads } from "../trace/carrying-heads";
import { el, replace, type Child } from "../ui/dom";
import { modelTitles, percent, quoted, shortNumber, signed, visible } from "../ui/format";
import { describe } from "../ui/tooltip";
import type { Context, View } from "../ui/view";
import { taskTable } from "./task-table";
import { trainingCard } from "./training-card";

export function overviewView(context: Context): View {
  const { report, store } = context;
  const figures = el("div", { class: "figures" });
  const notes = [...report.notes, ...warnings(report)];
  const tasks = report.tasks.length ? taskTable(context) : null;
  const training = report.training ? trainingCard(context, report.training) : null;
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
}

function figureButton({ store, tabs }: Context, { tab, value, label, comparison, description }: KeyFigure): HTMLElement {
  const onclick = () => store.set({ tab: tabs.includes(tab) ? tab : "overview" });
  const button = el(
    "button",
    { type: "button", class: "figure", onclick },
    el("span", { class: "value" }, ...value),
    el("span", { class: "label" }, label),
    el("span", { class: "aside" }, comparison),
  );
  return describe(button, description);
}

const keyFigures = (report: Report, state: State): KeyFigure[] =>
  [circuitFigure(report, state), densityFigure(report, state), lossFigure(report), traceFigure(report, state)].filter(
    (figure) => figure !== null,
  );

function circuitFigure(report: Report, state: State): KeyFigure | null {
  const task = selectedTask(report, state);
  const circuit = task?.models[task.models.length - 1]?.head_circuit;
  if (!task || !circuit) return null;
  const names = modelTitles(task.models);
  const other = task.models.length > 1 ? task.models[0]?.head_circuit : null;
  const arrow = el("span", { class: "arrow", "aria-label": "to", role: "img" }, "→");
  return {
    tab: "circuit",
    value: [`${circuit.total}`, arrow, `${circuit.needed}`],
    label: `heads explain ${percent(task.threshold)} of the effect on ${visible(task.task, 24)}`,
    comparison: other ? `${other.needed} in ${names[0]}` : names[0]!,
    description: `The fewest heads that explain ${percent(task.threshold)} of the effect on ${task.task} (${task.metric}) when all others are patched with the activations of a corrupted prompt. Click for the curve.`,
  };
}

function densityFigure(report: Report, state: State): KeyFigure | null {
  const { training } = report;
  if (training)
    return {
      tab: "maps",
      value: [percent(training.density, 1)],
      label: "of attention edges are open",
      comparison: training.edges_per_query
        ? `${shortNumber(training.edges_per_query)} keys per query on average`
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

function lossFigure({ training }: Report): KeyFigure | null {
  if (!training) return null;
  const { dense_ce: dense, sparse_ce: sparse, tolerance } = training;
  return {
    tab: "overview",
    value: [signed(training.delta_ce)],
    label: "loss relative to the dense model",
    comparison: dense === null ? "nats per token" : `${dense.toFixed(3)} dense, ${sparse?.toFixed(3) ?? "–"} sparse`,
    description: `Cross-entropy on held-out text, in nats per token: the sparse model's minus the dense model's. The loss tolerance was ${shortNumber(tolerance)}.`,
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
