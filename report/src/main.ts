// The page: header with tabs, bar of the selected head, and the views, each made when it is first shown.
import { circuitView } from "./circuit/circuit-view";
import { readReport, type Report } from "./data";
import { flowView } from "./flow/flow-view";
import { headBar } from "./head-bar";
import { mapsView } from "./maps/maps-view";
import { overviewView } from "./overview/overview-view";
import { Store, TABS, type Changed, type State, type Tab } from "./store";
import { traceView } from "./trace/trace-view";
import { isDark, onTheme, setPrinting, setTheme } from "./ui/colour";
import { el, replace } from "./ui/dom";
import { visible } from "./ui/format";
import { hideTooltip, installTooltip } from "./ui/tooltip";
import type { Context, View } from "./ui/view";

const NAMES: Record<Tab, string> = {
  overview: "Overview",
  maps: "Maps",
  flow: "Flow",
  circuit: "Circuit",
  trace: "Trace",
};
const VIEWS: Record<Tab, (context: Context) => View> = {
  overview: overviewView,
  maps: mapsView,
  flow: flowView,
  circuit: circuitView,
  trace: traceView,
};

/** The tabs for which there are results. */
function tabsOf(report: Report): Tab[] {
  const maps = report.tasks.some((task) => task.prompts.length > 0);
  const available: Record<Tab, boolean> = {
    overview: true,
    maps,
    flow: maps,
    circuit: report.tasks.length > 0,
    trace: report.traces.length > 0,
  };
  return TABS.filter((tab) => available[tab]);
}

class Page {
  private readonly report = readReport();
  private readonly store = new Store();
  private readonly tabs = tabsOf(this.report);
  private readonly context: Context = { report: this.report, store: this.store, tabs: this.tabs };
  private readonly views = new Map<Tab, View>();
  private readonly missed = new Map<Tab, Set<keyof State>>(); // changes since a hidden view was last drawn
  private readonly buttons = new Map(this.tabs.map((tab) => [tab, this.tabButton(tab)]));
  private readonly panels = new Map(this.tabs.map((tab) => [tab, tabPanel(tab)]));
  private readonly bar = headBar(this.context);
  private readonly theme = el("button", {
    type: "button",
    class: "theme",
    onclick: () => setTheme(isDark() ? "light" : "dark"),
  });

  constructor(app: HTMLElement) {
    app.append(this.skipLink(), this.header(), this.bar.element, el("main", {}, ...this.panels.values()));
    installTooltip();
    this.nameTheme();
    this.store.listen((changed) => this.update(changed));
    onTheme(() => {
      this.nameTheme();
      this.views.forEach((view) => view.update(null));
    });
    // wherever the focus is: Esc closes what is open and clears what is picked and searched for
    addEventListener("keydown", ({ key }) => key === "Escape" && this.store.set({ open: false, pick: "", find: "" }));
    addEventListener("beforeprint", () => {
      setPrinting(true);
      this.tabs.forEach((tab) => this.show(tab, null));
    });
    addEventListener("afterprint", () => {
      setPrinting(false);
      this.update(null);
    });
    this.update(null);
  }

  private get current(): Tab {
    const { tab } = this.store.state;
    return this.tabs.includes(tab) ? tab : "overview";
  }

  private nameTheme(): void {
    this.theme.textContent = isDark() ? "Light" : "Dark";
  }

  private update(changed: Changed | null): void {
    hideTooltip();
    const { current } = this;
    for (const tab of this.tabs) {
      const button = this.buttons.get(tab)!;
      button.setAttribute("aria-selected", String(tab === current));
      button.tabIndex = tab === current ? 0 : -1;
      this.panels.get(tab)!.hidden = tab !== current;
      const missed = this.missed.get(tab) ?? new Set();
      changed?.forEach((key) => missed.add(key));
      this.missed.set(tab, tab === current ? new Set() : missed);
      if (tab === current) this.show(tab, changed ? missed : null);
    }
    this.bar.update();
    document.title = `${visible(this.report.title, 60)} · ${NAMES[current]} · Edgewise`;
  }

  private show(tab: Tab, changed: Changed | null): void {
    const panel = this.panels.get(tab)!;
    panel.hidden = false;
    try {
      const made = this.views.get(tab);
      if (made) return made.update(changed);
      const view = VIEWS[tab](this.context);
      this.views.set(tab, view);
      replace(panel, view.element);
      view.update(null);
    } catch (error) {
      // damaged results must not take the other views down
      replace(panel, problem("This view could not be drawn", error));
    }
  }

  private header(): HTMLElement {
    return el(
      "header",
      { class: "top" },
      el(
        "div",
        { class: "name" },
        el("h1", {}, visible(this.report.title, 60)),
        el("span", { class: "made" }, visible(this.report.made, 40)),
      ),
      el(
        "div",
        {
          class: "tabs",
          role: "tablist",
          "aria-label": "Views",
          onkeydown: (event: KeyboardEvent) => this.moveTab(event),
        },
        ...this.buttons.values(),
      ),
      this.theme,
    );
  }

  private tabButton(tab: Tab): HTMLButtonElement {
    const onclick = () => this.store.set({ tab });
    return el(
      "button",
      { type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": `view-${tab}`, onclick },
      NAMES[tab],
    );
  }

  private moveTab(event: KeyboardEvent): void {
    const { tabs } = this;
    const last = tabs.length - 1;
    const now = tabs.indexOf(this.current);
    const next = {
      ArrowRight: now === last ? 0 : now + 1,
      ArrowLeft: now === 0 ? last : now - 1,
      Home: 0,
      End: last,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.store.set({ tab: tabs[next]! });
    this.buttons.get(tabs[next]!)!.focus();
  }

  private skipLink(): HTMLElement {
    const onclick = (event: Event) => {
      event.preventDefault();
      this.panels.get(this.current)!.querySelector<HTMLElement>("button, select, input, a")?.focus();
    };
    return el("a", { class: "skip", href: "#", onclick }, "Skip to content");
  }
}

const tabPanel = (tab: Tab): HTMLElement =>
  el("div", { class: "view", role: "tabpanel", id: `view-${tab}`, "aria-labelledby": `tab-${tab}`, hidden: true });

const problem = (text: string, error: unknown): HTMLElement =>
  el("p", { class: "note" }, `${text}: ${error instanceof Error ? error.message : error}`);

const app = document.getElementById("app")!;
try {
  new Page(app);
  performance.mark("drawn");
} catch (error) {
  replace(app, problem("This report is damaged and cannot be shown", error));
}
