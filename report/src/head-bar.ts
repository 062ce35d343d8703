// The bar of the selected head: its importance and type in each model, and links to it in the other views.
import { importance, selectedPrompt, selectedTask } from "./selection";
import { el, replace } from "./ui/dom";
import { parseHead } from "./maps/attention-maps";
import type { Tab } from "./store";
import type { Context } from "./ui/view";
import { percent, modelTitles, visible } from "./ui/format";

const VIEWS: [Tab, string][] = [
  ["maps", "Maps"],
  ["flow", "Flow"],
  ["circuit", "Circuit"],
  ["trace", "Trace"],
];

export function headBar({ report, store, tabs }: Context): { element: HTMLElement; update(): void } {
  const element = el("aside", { class: "headbar", "aria-label": "Selected head", hidden: true });
  const update = () => {
    const { head, tab } = store.state;
    const parsed = parseHead(head);
    element.hidden = !parsed;
    if (!parsed) return;
    const task = selectedTask(report, store.state);
    const types = selectedPrompt(task, store.state)?.types;
    const names = modelTitles(task?.models ?? []);
    const facts = (task?.models ?? []).map((model, i) => {
      const share = importance(model, head);
      const type = types?.[i]?.[parsed.layer]?.[parsed.head];
      const effect = share === undefined ? null : `importance ${percent(share, 1)} on ${visible(task!.task, 24)}`;
      const text = [effect, type].filter(Boolean).join(", ");
      return el("span", { class: "fact" }, el("b", {}, names[i]!), ` ${text || "not ranked"}`);
    });
    const go = (to: Tab) => store.set({ tab: to, open: true, ...(to === "trace" ? { pick: `head:${head}` } : {}) });
    replace(
      element,
      el("b", { class: "selected" }, head),
      ...facts,
      el("span", { class: "spring" }),
      ...VIEWS.filter(([to]) => tabs.includes(to) && to !== tab).map(([to, name]) =>
        el("button", { type: "button", onclick: () => go(to) }, `In ${name}`),
      ),
      el(
        "button",
        { type: "button", "aria-label": `Deselect ${head}`, onclick: () => store.set({ head: "", open: false }) },
        "✕",
      ),
    );
  };
  return { element, update };
}
