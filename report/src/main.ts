// The page: tabs, what is lit, and the views, each made when it is first looked at.
import { circuitView } from "./circuit-view";
import { isDark, onTheme, setPrinting, setTheme } from "./colour";
import { readReport, type Report } from "./data";
import { el, replace } from "./dom";
import { flowView } from "./flow-view";
import { headBar } from "./head-bar";
import { mapsView } from "./maps-view";
import { overviewView } from "./overview-view";
import { Store, TABS, type Changed, type State, type Tab } from "./store";
import { hideTip, installTip } from "./tip";
import { traceView } from "./trace-view";
import type { Context, View } from "./view";
import { visible } from "./words";

const NAMES: Record<Tab, string> = {
  overview: "Overview",
  maps: "Maps",
  flow: "Flow",
  circuit: "Circuit",
  trace: "Trace",
};
const MAKERS: Record<Tab, (context: Context) => View> = {
  overview: overviewView,
  maps: mapsView,
  flow: flowView,
  circuit: circuitView,
  trace: traceView,
};

/** Tabs with something in them. */
function tabsOf(report: Report): Tab[] {
  const maps = report.tasks.some((task) => task.prompts.length > 0);
  const has: Record<Tab, boolean> = {
    overview: true,
    maps,
    flow: maps,
    circuit: report.tasks.length > 0,
    trace: report.traces.length > 0,
  };
  return TABS.filter((tab) => has[tab]);
}

function start(): void {
  const report = readReport();
  const store = new Store();
  const tabs = tabsOf(report);
  const context: Context = { report, store, tabs };
  const views = new Map<Tab, View>();
  const shown = (): Tab => (tabs.includes(store.state.tab) ? store.state.tab : "overview");

  const buttons = new Map(
    tabs.map((tab) => [
      tab,
      el(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${tab}`,
          "aria-controls": `view-${tab}`,
          onclick: () => store.set({ tab }),
        },
        NAMES[tab],
      ),
    ]),
  );
  const panels = new Map(
    tabs.map((tab) => [
      tab,
      el("div", {
        class: "view",
        role: "tabpanel",
        id: `view-${tab}`,
        "aria-labelledby": `tab-${tab}`,
        hidden: true,
      }),
    ]),
  );
  const list = el(
    "div",
    {
      class: "tabs",
      role: "tablist",
      "aria-label": "Views",
      onkeydown: (event: KeyboardEvent) => {
        const step = { ArrowRight: 1, ArrowLeft: -1, Home: -99, End: 99 }[event.key];
        if (!step) return;
        event.preventDefault();
        const place = tabs.indexOf(shown()) + step;
        const next = tabs[Math.abs(step) > 1 ? (step < 0 ? 0 : tabs.length - 1) : (place + tabs.length) % tabs.length]!;
        store.set({ tab: next });
        buttons.get(next)!.focus();
      },
    },
    ...buttons.values(),
  );

  const theme = el("button", { type: "button", class: "theme", onclick: () => setTheme(isDark() ? "light" : "dark") });
  const nameTheme = () => (theme.textContent = isDark() ? "Light" : "Dark");
  nameTheme();
  const bar = headBar(context);
  const app = document.getElementById("app")!;
  app.append(
    el(
      "a",
      {
        class: "skip",
        href: "#",
        onclick: (event: Event) => {
          event.preventDefault();
          panels.get(shown())!.querySelector<HTMLElement>("button, select, input, a")?.focus();
        },
      },
      "Skip to the view",
    ),
    el(
      "header",
      { class: "top" },
      el(
        "div",
        { class: "name" },
        el("h1", {}, visible(report.title, 60)),
        el("span", { class: "made" }, visible(report.made, 40)),
      ),
      list,
      theme,
    ),
    bar.element,
    el("main", {}, ...panels.values()),
  );
  installTip();

  const show = (tab: Tab, changed: Changed | null) => {
    const panel = panels.get(tab)!;
    panel.hidden = false;
    try {
      const view = views.get(tab);
      if (view) return view.update(changed);
      const made = MAKERS[tab](context);
      views.set(tab, made);
      replace(panel, made.element);
      made.update(null);
    } catch (error) {
      // results can be damaged in ways nobody thought of: the other views still work
      replace(
        panel,
        el("p", { class: "note" }, `This view could not be drawn: ${error instanceof Error ? error.message : error}`),
      );
    }
  };
  const missed = new Map<Tab, Set<keyof State>>(); // what a hidden view has not heard of yet
  const update = (changed: Changed | null) => {
    hideTip();
    const current = shown();
    for (const tab of tabs) {
      buttons.get(tab)!.setAttribute("aria-selected", String(tab === current));
      buttons.get(tab)!.tabIndex = tab === current ? 0 : -1;
      panels.get(tab)!.hidden = tab !== current;
      const unheard = missed.get(tab) ?? new Set();
      changed?.forEach((key) => unheard.add(key));
      missed.set(tab, tab === current ? new Set() : unheard);
      if (tab === current) show(tab, changed ? unheard : null);
    }
    bar.update();
    document.title = `${visible(report.title, 60)} · ${NAMES[current]} · Edgewise`;
  };
  store.listen(update);
  onTheme(() => {
    nameTheme();
    views.forEach((view) => view.update(null));
  });
  addEventListener("beforeprint", () => {
    setPrinting(true);
    tabs.forEach((tab) => show(tab, null));
  });
  addEventListener("afterprint", () => {
    setPrinting(false);
    update(null);
  });
  update(null);
  performance.mark("drawn");
}

try {
  start();
} catch (error) {
  replace(
    document.getElementById("app")!,
    el(
      "p",
      { class: "note" },
      `This report is damaged and cannot be shown: ${error instanceof Error ? error.message : error}`,
    ),
  );
}
