// What the inspector of a trace is put together from.
import type { Trace, TraceLink } from "./data";
import { el, type Child } from "./dom";
import { headName, Maps } from "./maps";
import { nodesById, sourceName } from "./trace-names";
import { short, signed } from "./words";

export type Choose = (pick: string) => void;

export const title = (text: string, kind: string): HTMLElement => el("h3", {}, el("small", {}, kind), text);

/** A list of names with bars; negative ones go the other way in colour. */
export function bars(label: string, rows: [Child, number, (() => void) | null, string?][]): HTMLElement | null {
  if (!rows.length) return null;
  const most = Math.max(1e-12, ...rows.map(([, value]) => Math.abs(value)));
  return el(
    "div",
    { class: "bars" },
    el("h4", {}, label),
    el(
      "ul",
      {},
      ...rows.map(([name, value, act, said]) => {
        const ink = el("span", { class: value < 0 ? "ink minus" : "ink" });
        ink.style.width = `${(100 * Math.abs(value)) / most}%`;
        return el(
          "li",
          {},
          act ? el("button", { type: "button", class: "plain", onclick: act }, name) : el("span", {}, name),
          el("span", { class: "track", "aria-hidden": "true" }, ink),
          el("span", { class: "number" }, said ?? short(value)),
        );
      }),
    ),
  );
}

/** The share of the logits that each head carries, over all its edges. */
export function headFlows(trace: Trace): [string, number][] {
  const cells = Maps.of(trace.cells);
  const found: [string, number][] = [];
  for (let layer = 0; layer < cells.layers; layer++)
    for (let head = 0; head < cells.heads; head++) {
      let sum = 0;
      for (let query = 0; query < cells.length; query++)
        for (let key = 0; key <= query; key++) sum += cells.flow(layer, head, query, key);
      const share = trace.head_flow?.[layer]?.[head] ?? sum * trace.cells_largest;
      if (share > 0) found.push([headName({ layer, head }), share]);
    }
  return found.sort((a, b) => b[1] - a[1]);
}

export function linkName(trace: Trace, link: TraceLink): string {
  const nodes = nodesById(trace);
  return `${sourceName(trace, link.source, nodes)} → ${sourceName(trace, link.target, nodes)}`;
}

export const trial = (tried: Trace["interventions"][number]): HTMLElement =>
  el(
    "p",
    {},
    "Taken away, the logit changes by ",
    el("b", {}, signed(tried.actual, 2)),
    `; predicted ${signed(tried.predicted, 2)}`,
    Number.isFinite(tried.frozen_attention) ? `; with attention held still ${signed(tried.frozen_attention, 2)}.` : ".",
  );
