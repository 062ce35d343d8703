// The table of tasks: accuracy and circuit size of each model, as bars.
import type { Task } from "../data";
import { card } from "../ui/card";
import { modelColours } from "../ui/colour";
import { el, replace } from "../ui/dom";
import { modelTitles, percent, shortNumber, visible } from "../ui/format";
import { legend } from "../ui/legend";
import type { Context, View } from "../ui/view";

interface Column {
  key: string; // in ModelCircuit.counts
  name: string;
  description: string;
}

const COLUMNS: Column[] = [
  { key: "heads_minimal", name: "Heads, minimal", description: "of the smallest circuit that a joint search found" },
  { key: "heads", name: "Heads, ranked", description: "of one ranking for all prompts, the most important ones that explain the threshold's share of the effect" },
  { key: "edges_minimal", name: "Edges, minimal", description: "of the smallest circuit that a joint search found" },
  { key: "edges", name: "Edges, ranked", description: "between heads, MLPs, embedding and logits: the most important ones that explain it" },
  { key: "head_head_edges", name: "Head pairs", description: "joined by edges of the circuit" },
  { key: "token_edges", name: "Token edges", description: "(head, query, key) used per prompt, on average" },
];

/** Whether circuits were searched: flows and maps of given prompts have none. */
export const hasCircuit = (task: Task): boolean => task.metric !== "";

export function taskTable(context: Context): View {
  const { report, store } = context;
  const rows = () =>
    report.tasks.filter(hasCircuit).flatMap((task) =>
      task.models.map((model, i) => [
        task.task,
        modelTitles(task.models)[i],
        model.accuracy,
        ...COLUMNS.map(({ key }) => model.counts[key]),
      ]),
    );
  const { section, body } = card(
    store,
    "Tasks",
    "Bars show the size of each model's circuit on a task; smaller is simpler.",
    "tasks",
    { rows: () => [["task", "model", "accuracy", ...COLUMNS.map(({ key }) => key)], ...rows()], value: () => rows() },
  );
  const columns = COLUMNS.filter(({ key }) =>
    report.tasks.some((task) => task.models.some((model) => model.counts[key] != null)),
  );
  const update = () => replace(body, legend(report.tasks.find(hasCircuit)!.models), table(context, columns));
  return { element: section, update };
}

function table(context: Context, columns: Column[]): HTMLElement {
  const header = el(
    "tr",
    {},
    el("th", { scope: "col" }, "Task"),
    el("th", { scope: "col" }, "Accuracy"),
    ...columns.map(({ name, description }) =>
      el("th", { scope: "col", title: `${name} ${description}` }, name),
    ),
  );
  const rows = context.report.tasks.flatMap((task, i) => (hasCircuit(task) ? [taskRow(context, columns, task, i)] : []));
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of tasks" },
    el("table", { class: "tasks-table" }, el("thead", {}, header), el("tbody", {}, ...rows)),
  );
}

function taskRow({ store, tabs }: Context, columns: Column[], task: Task, index: number): HTMLElement {
  const names = modelTitles(task.models);
  const colours = modelColours(task.models.map((model) => model.kind));
  const onclick = () => store.set({ task: index, prompt: 0, tab: tabs.includes("maps") ? "maps" : "circuit" });
  const sizes = ({ key }: Column): HTMLElement => {
    const counts = task.models.map((model) => model.counts[key]);
    const max = Math.max(1e-9, ...counts.map((count) => count ?? 0));
    const ratio = task.ratios[key];
    return el(
      "td",
      {},
      ...counts.map((count, i) => bar(count, max, colours[i]!, names[i]!)),
      ratio ? el("span", { class: "ratio" }, comparison(ratio)) : null,
    );
  };
  return el(
    "tr",
    {},
    el(
      "th",
      { scope: "row" },
      el("button", { type: "button", class: "plain", onclick }, visible(task.task, 30)),
      el("small", {}, `${percent(task.threshold)} of ${visible(task.metric, 40)}`),
    ),
    el(
      "td",
      {},
      ...task.models.map(({ accuracy }, i) =>
        bar(accuracy, 1, colours[i]!, names[i]!, percent(accuracy, (accuracy ?? 0) < 0.9995 ? 1 : 0)),
      ),
    ),
    ...columns.map(sizes),
  );
}

function bar(value: number | null | undefined, max: number, fill: string, name: string, text?: string): HTMLElement {
  const ink = el("span", { class: "ink" });
  ink.style.width = `${(100 * (value ?? 0)) / max}%`;
  ink.style.background = fill;
  return el(
    "div",
    { class: "bar" },
    el("span", { class: "unseen" }, `${name}: `),
    el("span", { class: "track", "aria-hidden": "true" }, ink),
    el("span", {}, text ?? shortNumber(value)),
  );
}

/** The ratio of the first model's count to the second's, from the second's side. */
function comparison(ratio: number): string {
  const times = shortNumber(Math.max(ratio, 1 / ratio));
  if (times === "1") return ratio === 1 ? "as many" : "about as many";
  return `${times} × ${ratio > 1 ? "fewer" : "more"}`;
}
