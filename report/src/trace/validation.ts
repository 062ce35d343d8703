// Validation by intervention: how well a trace predicts what ablations do, and which way each one acts.
import type { Intervention, Trace } from "../data";
import { el, type Child } from "../ui/dom";
import { modelTitles, quoted, signed, visible } from "../ui/format";
import { featureWords, placeName } from "./node-names";

const KINDS = ["feature", "head", "token"] as const;
const LARGEST = 12;
const PARTS = [
  ["values", "along values (the graph)"],
  ["attention", "by moving attention"],
  ["norms", "norms"],
  ["errors", "MLPs beyond features"],
] as const;

/** What all effects are changes of. */
export function measuredOn(trace: Trace): string {
  const answers = trace.logits.slice(0, 3).map(([text]) => quoted(text, 14));
  return `the log odds of ${answers.join(" / ")}`;
}

/** Correlations of predictions with measured effects, a row for each model. */
export function trustTable(traces: Trace[]): Child {
  if (!traces.some((trace) => trace.interventions.length)) return null;
  const names = modelTitles(traces);
  const head = (text: string, title: string) => el("th", { scope: "col", title }, text);
  const correlation = (value: number | null | undefined) =>
    el("td", { class: "number" }, typeof value === "number" ? value.toFixed(2) : "–");
  const rows = traces.map((trace, i) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, names[i]!),
      ...["", "_replaced", "_frozen"].flatMap((ending) =>
        KINDS.map((kind) => correlation(trace.figures[`${kind}_correlation${ending}`])),
      ),
    ),
  );
  return el(
    "div",
    { class: "trust" },
    el(
      "p",
      { class: "how" },
      `Validation by intervention: correlation of predicted and measured effects of ablations on ${measuredOn(traces[0]!)}.`,
    ),
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Validation by intervention" },
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("td", {}),
            el("th", { scope: "colgroup", colspan: 3 }, "graph"),
            el("th", { scope: "colgroup", colspan: 3 }, "replaced model"),
            el("th", { scope: "colgroup", colspan: 3 }, "graph, all frozen"),
          ),
          el(
            "tr",
            {},
            el("td", {}),
            ...[0, 1, 2].flatMap(() =>
              KINDS.map((kind) => head(`${kind}s`, `r over the ablated ${kind}s`)),
            ),
          ),
        ),
        el("tbody", {}, ...rows),
      ),
    ),
  );
}

/** The largest effects of a trace, each as a bar of its parts, which add up to what is measured. */
export function effectBars(trace: Trace, select: (pick: string) => void): Child[] {
  const tested = [...trace.interventions]
    .filter(({ values }) => values !== undefined)
    .sort((a, b) => Math.abs(b.actual) - Math.abs(a.actual))
    .slice(0, LARGEST);
  if (!tested.length) return [el("p", { class: "quiet" }, "This trace was made before effects were split.")];
  const size = (one: Intervention) => PARTS.reduce((sum, [part]) => sum + Math.abs(one[part] ?? 0), 0);
  const largest = Math.max(1e-9, ...tested.map(size));
  const legend = PARTS.map(([part, name]) => el("span", {}, el("i", { class: `part ${part}` }), name));
  return [
    el("p", { class: "parts-legend" }, ...legend),
    el("ul", { class: "effects" }, ...tested.map((one) => effectRow(trace, one, largest, select))),
  ];
}

function effectRow(trace: Trace, one: Intervention, largest: number, select: (pick: string) => void): HTMLElement {
  const name = one.kind === "head" ? one.what : placeName(trace, one.what);
  const words = one.kind === "head" ? "" : featureWords(trace, one.what);
  const segments = PARTS.map(([part, label]) => {
    const value = one[part] ?? 0;
    const segment = el("span", { class: `part ${part}${value < 0 ? "" : " plus"}` });
    segment.style.width = `${(100 * Math.abs(value)) / largest}%`;
    segment.title = `${label}: ${signed(value, 2)}`;
    return segment;
  });
  const pick = one.kind === "head" ? `head:${one.what}` : `node:${one.what}`;
  return el(
    "li",
    {},
    el(
      "div",
      {},
      el("button", { type: "button", class: "plain", onclick: () => select(pick) }, visible(name, 40)),
      words && el("small", {}, visible(words, 60)),
    ),
    el("span", { class: "track", "aria-hidden": "true" }, ...segments),
    el("span", { class: "number" }, signed(one.actual, 2)),
    el("span", { class: "quiet" }, actsBy(one)),
  );
}

/** The largest part in words; of moving attention, with the heads whose patterns it moves. */
export function actsBy(one: Intervention): string {
  const sized = PARTS.map(([part, name]) => [part, name, Math.abs(one[part] ?? 0)] as const);
  const [part, name] = sized.reduce((best, next) => (next[2] > best[2] ? next : best));
  const heads = (one.moved ?? []).slice(0, 3).map(([head, effect]) => `${head} ${signed(effect, 1)}`);
  return part === "attention" && heads.length ? `moves ${heads.join(", ")}` : name;
}
