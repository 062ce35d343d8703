// Elements of the inspector: titles, bars, facts, the result of an intervention.
import type { Trace } from "../data";
import { AttentionMaps, headName } from "../maps/attention-maps";
import { el, type Child } from "../ui/dom";
import { shortNumber, signed } from "../ui/format";
import { measuredOn } from "./validation";

export type Select = (pick: string) => void;

export const title = (text: string, kind: string): HTMLElement => el("h3", {}, el("small", {}, kind), text);

export const facts = (...values: ([string, string] | null)[]): HTMLElement =>
  el(
    "dl",
    { class: "facts" },
    ...values.map((fact) => fact && el("div", {}, el("dt", {}, fact[0]), el("dd", {}, fact[1]))),
  );

export interface Bar {
  name: string;
  value: number; // a negative one has another colour
  text?: string;
  onclick?: () => void;
}

/** Names with bars; nothing if there are none. */
export function bars(label: string, list: Bar[]): HTMLElement | null {
  if (!list.length) return null;
  const max = Math.max(1e-12, ...list.map(({ value }) => Math.abs(value)));
  const items = list.map(({ name, value, text, onclick }) => {
    const ink = el("span", { class: value < 0 ? "ink minus" : "ink" });
    ink.style.width = `${(100 * Math.abs(value)) / max}%`;
    return el(
      "li",
      {},
      onclick ? el("button", { type: "button", class: "plain", onclick }, name) : el("span", {}, name),
      el("span", { class: "track", "aria-hidden": "true" }, ink),
      el("span", { class: "number" }, text ?? shortNumber(value)),
    );
  });
  return el("div", { class: "bars" }, el("h4", {}, label), el("ul", {}, ...items));
}

/** The share of the output that each head carries, over all its edges; largest first. */
export function headFlows(trace: Trace): [string, number][] {
  const cells = AttentionMaps.of(trace.cells);
  const flows: [string, number][] = [];
  for (let layer = 0; layer < cells.layers; layer++)
    for (let head = 0; head < cells.heads; head++) {
      const flow = trace.head_flow?.[layer]?.[head] ?? sumOfCells(cells, layer, head) * trace.cells_largest;
      if (flow > 0) flows.push([headName({ layer, head }), flow]);
    }
  return flows.sort((a, b) => b[1] - a[1]);
}

function sumOfCells(cells: AttentionMaps, layer: number, head: number): number {
  let sum = 0;
  for (let query = 0; query < cells.length; query++)
    for (let key = 0; key <= query; key++) sum += cells.flow(layer, head, query, key);
  return sum;
}

/** The effect of ablating a feature or a head, if it was measured. */
export function ablation(trace: Trace, what: string): Child {
  const intervention = trace.interventions.find((candidate) => candidate.what === what);
  if (!intervention) return null;
  const { actual, predicted, frozen, replaced } = intervention;
  const text = el(
    "p",
    {},
    `When it is ablated, ${measuredOn(trace)} changes by `,
    el("b", {}, signed(actual, 2)),
    `; predicted by the graph ${signed(predicted, 2)}`,
    replaced === undefined ? "" : `, in the replaced model ${signed(replaced, 2)}`,
    Number.isFinite(frozen) ? `; with attention and norms frozen ${signed(frozen, 2)}.` : ".",
  );
  if (intervention.values === undefined) return text;
  const { values, attention = 0, norms = 0, errors = 0 } = intervention;
  return el(
    "div",
    {},
    text,
    facts(
      ["along values (the graph)", signed(values, 2)],
      ["by moving attention", signed(attention, 2)],
      ["norms", signed(norms, 2)],
      ["MLPs beyond features", signed(errors, 2)],
    ),
    bars(
      "Heads whose attention it moves",
      (intervention.moved ?? []).map(([name, value]) => ({ name, value, text: signed(value, 2) })),
    ),
  );
}
