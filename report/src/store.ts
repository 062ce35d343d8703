// One object holds all that a visitor has chosen. Every change is told to the views, and written to the page's fragment,
// so that a link reproduces what is seen.

export const TABS = ["overview", "maps", "flow", "circuit", "trace"] as const;
export type Tab = (typeof TABS)[number];

export interface State {
  tab: Tab;
  task: number;
  prompt: number;
  threshold: number; // share of the effect; 0 means the task's own
  type: string; // of heads; "" is all
  sort: "importance" | "layer";
  head: string; // lit everywhere; "" is none
  open: boolean; // the head is enlarged among the maps
  query: number; // whose attention is drawn over the text; -1 is the last
  all: boolean; // flow through all heads, not only those of the circuit
  token: number; // at which flow ends; -1 is all
  steps: number; // back from the output in the flow; -1 is all
  edges: number; // of the wiring
  trace: number;
  links: number; // of the trace that are drawn
  side: number; // which of a pair of traces
  share: number; // of what a key brings, in the diagram
  key: number; // of the diagram; -1 is the main one
  pick: string; // in the trace: link:3, node:ID or head:L4H1
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
  links: 100,
  side: 1,
  share: 0.8,
  key: -1,
  pick: "",
};
const KEYS = Object.keys(DEFAULTS) as (keyof State)[];

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
    this.tell(changed);
    if (changed.includes("tab")) this.write(true);
    else {
      clearTimeout(this.timer); // browsers refuse to have the address changed at every step of a slider
      this.timer = window.setTimeout(() => this.write(false), 120);
    }
  }

  get fragment(): string {
    const said = new URLSearchParams();
    for (const key of KEYS)
      if (key !== "tab" && this.state[key] !== DEFAULTS[key]) said.set(key, String(this.state[key]));
    return `#${this.state.tab}${said.size ? `?${said}` : ""}`;
  }

  /** Changes of one frame are told together. */
  private tell(changed: (keyof State)[]): void {
    const waiting = this.pending.size > 0;
    changed.forEach((key) => this.pending.add(key));
    if (waiting) return;
    requestAnimationFrame(() => {
      const told = this.pending;
      this.pending = new Set();
      this.listeners.forEach((listener) => listener(told));
    });
  }

  private write(visited: boolean): void {
    clearTimeout(this.timer);
    if (location.hash === this.fragment) return;
    try {
      if (visited) history.pushState(null, "", this.fragment);
      else history.replaceState(null, "", this.fragment);
    } catch {
      // inside some notebooks a page has no address of its own; it works without
    }
  }

  private restore(): void {
    const before = this.state;
    if (location.hash === this.fragment) return;
    this.state = { ...DEFAULTS, ...parse(location.hash) };
    const changed = KEYS.filter((key) => this.state[key] !== before[key]);
    if (changed.length) this.tell(changed);
  }
}

/** What a fragment says; anybody may have written it, so only values of the right kind count. */
export function parse(fragment: string): Partial<State> {
  const [tab, rest] = fragment.replace(/^#/, "").split("?", 2);
  const found: Record<string, unknown> = {};
  if ((TABS as readonly string[]).includes(tab ?? "")) found["tab"] = tab;
  for (const [key, text] of new URLSearchParams(rest ?? "")) {
    const usual = DEFAULTS[key as keyof State];
    if (key === "tab" || usual === undefined || !Object.hasOwn(DEFAULTS, key)) continue;
    if (typeof usual === "number") {
      const value = Number(text);
      if (Number.isFinite(value)) found[key] = value;
    } else if (typeof usual === "boolean") found[key] = text === "true";
    else if (key !== "sort" || text === "layer") found[key] = text;
  }
  return found as Partial<State>;
}
