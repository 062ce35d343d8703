// The first screen: what was found, in figures.
import { carrying } from "./carrying";
import { taskOf, tracesOf } from "./chosen";
import type { Report } from "./data";
import { el, replace, type Child } from "./dom";
import type { State, Tab } from "./store";
import { taskCard } from "./task-card";
import { explain } from "./tip";
import { trainingCard } from "./training-card";
import type { Context, View } from "./view";
import { percent, quoted, short, signed, titles, visible } from "./words";

export function overviewView(context: Context): View {
  const { report, store } = context;
  const element = el("div", { class: "overview" });
  const figures = el("div", { class: "figures" });
  element.append(el("h2", { class: "unseen" }, "What was found"), figures);
  const notes = [...report.notes, ...warnings(report)];
  if (notes.length)
    element.append(
      el(
        "aside",
        { class: "notes", "aria-label": "Notes" },
        el("b", {}, "Good to know"),
        el("ul", {}, ...notes.map((note) => el("li", {}, visible(note, 400)))),
      ),
    );
  const tasks = report.tasks.length ? taskCard(context) : null;
  if (tasks) element.append(tasks.element);
  const training = report.training ? trainingCard(context, report.training) : null;
  if (training) element.append(training.element);
  return {
    element,
    update: () => {
      replace(figures, ...foundFigures(context, report, store.state));
      tasks?.update(null);
      training?.update(null);
    },
  };
}

const warnings = (report: Report): string[] => [
  ...new Set([
    ...report.tasks.flatMap((task) =>
      task.models.flatMap((model) => model.warnings.map((text) => `${task.task}, ${model.model}: ${text}`)),
    ),
    ...report.traces.flat().flatMap((trace) => trace.warnings.map((text) => `Trace of ${trace.model}: ${text}`)),
  ]),
];

function foundFigures({ store, tabs }: Context, report: Report, state: State): Child[] {
  const found: Child[] = [];
  const figure = (
    to: Tab,
    value: Child[],
    label: string,
    aside: string,
    meaning: string,
    change: Partial<State> = {},
  ) =>
    found.push(
      explain(
        el(
          "button",
          {
            type: "button",
            class: "figure",
            onclick: () => store.set({ tab: tabs.includes(to) ? to : "overview", ...change }),
          },
          el("span", { class: "value" }, ...value),
          el("span", { class: "label" }, label),
          el("span", { class: "aside" }, aside),
        ),
        meaning,
      ),
    );
  const task = taskOf(report, state);
  const last = task?.models[task.models.length - 1];
  const names = titles(task?.models ?? []);
  if (task && last?.head_circuit) {
    const { total, needed } = last.head_circuit;
    const other = task.models.length > 1 ? task.models[0]?.head_circuit : null;
    figure(
      "circuit",
      [`${total}`, arrow(), `${needed}`],
      `heads carry ${percent(task.threshold)} of ${visible(task.task, 24)}`,
      other ? `${other.needed} in ${names[0]}` : names[0]!,
      `The fewest heads that explain ${percent(task.threshold)} of the effect on ${task.task} (${task.metric}) when all others get the activations of a corrupted prompt. Click for the curve.`,
    );
  }
  const edges = task?.models.map((model) => model.counts["open_token_edges"]);
  const training = report.training;
  if (training)
    figure(
      "maps",
      [percent(training.density, 1)],
      "of attention edges left",
      training.edges_per_query ? `${short(training.edges_per_query)} keys a query, in the mean` : "on held-out text",
      "Of all pairs of a query and an earlier key, in all heads, the share whose gate is open on held-out text. A closed edge has a weight of exactly 0.",
    );
  else if (edges?.length === 2 && edges[0] && typeof edges[1] === "number")
    figure(
      "maps",
      [percent(edges[1] / edges[0], 1)],
      "of attention edges left",
      `on prompts of ${visible(task!.task, 24)}`,
      "Attention edges that are open in the second model, as a share of those in the first.",
    );
  if (training)
    figure(
      "overview",
      [signed(training.delta_ce)],
      "loss, against the dense model",
      training.dense_ce === null
        ? "nats a token"
        : `${training.dense_ce.toFixed(3)} before, ${training.sparse_ce?.toFixed(3) ?? "–"} after`,
      `Cross-entropy on held-out text, in nats a token: the twin's minus the dense model's. The loss tolerance was ${short(training.tolerance)}.`,
    );
  const traces = tracesOf(report, state);
  const trace = traces[traces.length - 1];
  if (trace) {
    const heads = carrying(trace, trace.main_key, 0.8);
    figure(
      "trace",
      [`${heads.heads.length}`],
      `of ${heads.total} heads bring ${quoted(trace.tokens[trace.main_key], 14)} to ${quoted(trace.logits[0]?.[0], 14)}`,
      traces.length > 1
        ? `${carrying(traces[0]!, trace.main_key, 0.8).heads.length} in ${titles(traces)[0]}`
        : titles(traces)[0]!,
      "The fewest heads that carry 80 % of what attention brings from this key to the last query, on the way to the output. Click for the trace.",
    );
  }
  return found;
}

const arrow = (): HTMLElement => el("span", { class: "arrow", "aria-label": "to", role: "img" }, "→");
