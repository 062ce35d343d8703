// The state of the page: everything a visitor has selected. Listeners hear of every change, and the URL's fragment holds
// it, so that a link reproduces the view.

export const TABS = ["overview", "maps", "flow", "circuit", "trace"] as const;
export type Tab = (typeof TABS)[number];

export interface State {
  tab: Tab;
  task: number;
  prompt: number;
  threshold: number; // explained effect; 0: the task's own
  type: string; // head type; "": all
  sort: "importance" | "layer";
  head: string; // selected in all views; "": none
  open: boolean; // the selected head is enlarged
  query: number; // its attention weights are shown on the text; -1: the last
  all: boolean; // flow through all heads instead of the circuit's
  token: number; // target of the flow; -1: all
  steps: number; // layers back from the target; -1: all
  edges: number; // drawn in the wiring
  trace: number;
  training: number;
  links: number; // drawn in the attribution graph
  side: number; // 0 or 1: which model's trace
  share: number; // of the flow from the key, in the diagram
  key: number; // of the diagram; -1: the one with most flow
  pick: string; // selected in the trace: link:3, node:ID or head:L4H1
  find: string; // searched for in the attribution graph
  pins0: string; // pinned nodes of the first model's graph, in groups
  pins1: string; // and of the second's
}

export type Changed = ReadonlySet<keyof State>;

const DEFAULTS: State = {
  tab: "overview",
  task: 0,
  prompt: 0,
  threshold: 0,
  type: "",
  sort: "importance",
  head: "",
  open: false,
  query: -1,
  all: false,
  token: -1,
  steps: -1,
  edges: 60,
  trace: 0,
  training: 0,
  links: 100,
  side: 1,
  share: 0.8,
  key: -1,
  pick: "",
  find: "",
  pins0: "",
  pins1: "",
};
const KEYS = Object.keys(DEFAULTS) as (keyof State)[];

/** What Back undoes: views that one goes to, and a head that is opened. The rest only changes the link. */
const STEPS: ReadonlySet<keyof State> = new Set(["tab", "task", "prompt", "trace", "training", "open", "pick"]);

export class Store {
  state: State = { ...DEFAULTS, ...parse(location.hash) };
  private readonly listeners: ((changed: Changed) => void)[] = [];
  private pending = new Set<keyof State>();
  private timer = 0;

  constructor() {
    addEventListener("popstate", () => this.restore());
    addEventListener("hashchange", () => this.restore());
  }

  listen(listener: (changed: Changed) => void): void {
    this.listeners.push(listener);
  }

  set(change: Partial<State>): void {
    const before = this.state;
    const changed = KEYS.filter((key) => key in change && change[key] !== before[key]);
    if (!changed.length) return;
    this.state = { ...before, ...change };
    this.notify(changed);
    if (changed.some((key) => STEPS.has(key))) this.write(true);
    else {
      clearTimeout(this.timer); // browsers limit how often the URL may change
      this.timer = window.setTimeout(() => this.write(false), 120);
    }
  }

  get fragment(): string {
    const parameters = new URLSearchParams();
    for (const key of KEYS)
      if (key !== "tab" && this.state[key] !== DEFAULTS[key]) parameters.set(key, String(this.state[key]));
    return `#${this.state.tab}${parameters.size ? `?${parameters}` : ""}`;
  }

  /** Tell listeners of all changes of one frame together. */
  private notify(changed: (keyof State)[]): void {
    const waiting = this.pending.size > 0;
    changed.forEach((key) => this.pending.add(key));
    if (waiting) return;
    requestAnimationFrame(() => {
      const changes = this.pending;
      this.pending = new Set();
      this.listeners.forEach((listener) => listener(changes));
    });
  }

  private write(newEntry: boolean): void {
    clearTimeout(this.timer);
    if (location.hash === this.fragment) return;
    try {
      if (newEntry) history.pushState(null, "", this.fragment);
      else history.replaceState(null, "", this.fragment);
    } catch {
      // a sandboxed notebook frame has no URL of its own
    }
  }

  private restore(): void {
    const before = this.state;
    if (location.hash === this.fragment) return;
    this.state = { ...DEFAULTS, ...parse(location.hash) };
    const changed = KEYS.filter((key) => this.state[key] !== before[key]);
    if (changed.length) this.notify(changed);
  }
}

/** The state in a fragment; anyone can have written it, so values of the wrong type are ignored. */
export function parse(fragment: string): Partial<State> {
  const [tab, rest] = fragment.replace(/^#/, "").split("?", 2);
  const state: Record<string, unknown> = {};
  if ((TABS as readonly string[]).includes(tab ?? "")) state["tab"] = tab;
  for (const [key, text] of new URLSearchParams(rest ?? "")) {
    const fallback = DEFAULTS[key as keyof State];
    if (key === "tab" || fallback === undefined || !Object.hasOwn(DEFAULTS, key)) continue;
    if (typeof fallback === "number") {
      const value = Number(text);
      if (Number.isFinite(value)) state[key] = value;
    } else if (typeof fallback === "boolean") state[key] = text === "true";
    else if (key !== "sort" || text === "layer") state[key] = text;
  }
  return state as Partial<State>;
}
