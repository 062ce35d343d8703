// The table of tasks: what each model needs, as bars.
import { card } from "./card";
import { modelColours } from "./colour";
import type { Task } from "./data";
import { el, replace } from "./dom";
import type { Context, View } from "./view";
import { percent, short, titles, visible } from "./words";

const COLUMNS: [string, string, string][] = [
  ["heads", "Heads", "that carry the threshold of the effect, with one ranking for all prompts"],
  ["edges", "Edges", "between parts of the model that carry it"],
  ["head_head_edges", "Head pairs", "that are joined by the edges of the circuit"],
  ["token_edges", "Token edges", "(head, query, key) that are used on a prompt, in the mean"],
];

export function taskCard(context: Context): View {
  const { report, store, tabs } = context;
  const rows = () =>
    report.tasks.flatMap((task) =>
      task.models.map((model, i) => [
        task.task,
        titles(task.models)[i],
        model.accuracy,
        ...COLUMNS.map(([key]) => model.counts[key]),
      ]),
    );
  const { section, body } = card(
    store,
    "Tasks",
    "Each bar is what a model needs to do a task: fewer is simpler.",
    "tasks",
    { rows: () => [["task", "model", "accuracy", ...COLUMNS.map(([key]) => key)], ...rows()], value: () => rows() },
  );
  const shown = COLUMNS.filter(([key]) =>
    report.tasks.some((task) => task.models.some((model) => model.counts[key] != null)),
  );
  const row = (task: Task, place: number): HTMLElement => {
    const names = titles(task.models);
    const colours = modelColours(task.models.map((model) => model.kind));
    const cell = ([key]: [string, string, string]): HTMLElement => {
      const values = task.models.map((model) => model.counts[key]);
      const most = Math.max(1e-9, ...values.map((value) => value ?? 0));
      const ratio = task.ratios[key];
      return el(
        "td",
        {},
        ...values.map((value, i) => bar(value, most, colours[i]!, names[i]!)),
        ratio ? el("span", { class: "ratio" }, compared(ratio)) : null,
      );
    };
    return el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        el(
          "button",
          {
            type: "button",
            class: "plain",
            onclick: () => store.set({ task: place, prompt: 0, tab: tabs.includes("maps") ? "maps" : "circuit" }),
          },
          visible(task.task, 30),
        ),
        el("small", {}, `${percent(task.threshold)} of ${visible(task.metric, 40)}`),
      ),
      el(
        "td",
        {},
        ...task.models.map((model, i) =>
          bar(model.accuracy, 1, colours[i]!, names[i]!, percent(model.accuracy, model.accuracy < 0.9995 ? 1 : 0)),
        ),
      ),
      ...shown.map(cell),
    );
  };
  const update = () =>
    replace(
      body,
      legend(report.tasks[0]!.models),
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of tasks" },
        el(
          "table",
          { class: "tasks-table" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", { scope: "col" }, "Task"),
              el("th", { scope: "col" }, "Accuracy"),
              ...shown.map(([, name, meaning]) => {
                const head = el("th", { scope: "col" }, name);
                head.title = `${name} ${meaning}`;
                return head;
              }),
            ),
          ),
          el("tbody", {}, ...report.tasks.map(row)),
        ),
      ),
    );
  return { element: section, update };
}

function bar(value: number | null | undefined, most: number, fill: string, name: string, said?: string): HTMLElement {
  const ink = el("span", { class: "ink" });
  ink.style.width = `${(100 * (value ?? 0)) / most}%`;
  ink.style.background = fill;
  return el(
    "div",
    { class: "bar" },
    el("span", { class: "unseen" }, `${name}: `),
    el("span", { class: "track", "aria-hidden": "true" }, ink),
    el("span", {}, said ?? short(value)),
  );
}

export function legend(models: { model: string; kind: string }[]): HTMLElement {
  const colours = modelColours(models.map((model) => model.kind));
  return el(
    "p",
    { class: "legend" },
    ...titles(models).map((name, i) => {
      const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = colours[i]!;
      return el("span", {}, swatch, name);
    }),
  );
}

/** How many the first model needs to one of the second, in words. */
function compared(ratio: number): string {
  const times = short(Math.max(ratio, 1 / ratio));
  if (times === "1") return ratio === 1 ? "as many" : "about as many";
  return `${times} × ${ratio > 1 ? "fewer" : "more"}`;
}
