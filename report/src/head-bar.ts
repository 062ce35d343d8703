// The head that is lit: what is known of it, and where else it can be seen.
import { importance, promptOf, taskOf } from "./chosen";
import { el, replace } from "./dom";
import { parseHead } from "./maps";
import type { Tab } from "./store";
import type { Context } from "./view";
import { percent, titles, visible } from "./words";

const PLACES: [Tab, string][] = [
  ["maps", "Maps"],
  ["flow", "Flow"],
  ["circuit", "Circuit"],
  ["trace", "Trace"],
];

export function headBar({ report, store, tabs }: Context): { element: HTMLElement; update(): void } {
  const element = el("aside", { class: "headbar", "aria-label": "Lit head", hidden: true });
  const update = () => {
    const { head, tab } = store.state;
    const parsed = parseHead(head);
    element.hidden = !parsed;
    if (!parsed) return;
    const task = taskOf(report, store.state);
    const types = promptOf(task, store.state)?.types;
    const names = titles(task?.models ?? []);
    const facts = (task?.models ?? []).map((model, i) => {
      const share = importance(model, head);
      const kind = types?.[i]?.[parsed.layer]?.[parsed.head];
      const said = [share === undefined ? null : `${percent(share, 1)} of ${visible(task!.task, 24)}`, kind]
        .filter(Boolean)
        .join(", ");
      return el("span", { class: "fact" }, el("b", {}, names[i]!), ` ${said || "not ranked"}`);
    });
    const go = (to: Tab) => store.set({ tab: to, open: true, ...(to === "trace" ? { pick: `head:${head}` } : {}) });
    replace(
      element,
      el("b", { class: "lit" }, head),
      ...facts,
      el("span", { class: "spring" }),
      ...PLACES.filter(([to]) => tabs.includes(to) && to !== tab).map(([to, name]) =>
        el("button", { type: "button", onclick: () => go(to) }, `In ${name}`),
      ),
      el(
        "button",
        { type: "button", "aria-label": `Put out ${head}`, onclick: () => store.set({ head: "", open: false }) },
        "✕",
      ),
    );
  };
  return { element, update };
}
