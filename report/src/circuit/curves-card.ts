// Circuit curves: effect explained by the most important heads, and edges.
import type { ComponentCircuit, ModelCircuit, Task } from "../data";
import { prefixSize, selectedThreshold } from "../selection";
import { card } from "../ui/card";
import { chart, type Series } from "../ui/chart";
import { modelColours } from "../ui/colour";
import { el } from "../ui/dom";
import type { Cell } from "../ui/download";
import { modelTitles, percent, quoted } from "../ui/format";
import { figureWidth, redrawOnResize } from "../ui/redraw";
import type { Context, View } from "../ui/view";

type Kind = "head_circuit" | "edge_circuit";
const COMPONENTS: Record<Kind, string> = { head_circuit: "heads", edge_circuit: "edges" };

export function curvesCard({ store }: Context, task: () => Task): View {
  let charts: SVGSVGElement[] = [];
  const frame = card(
    store,
    "Circuit curves",
    "Effect explained by the most important heads (or edges), with all others patched with the activations of a corrupted prompt. The further left a curve rises, the smaller the circuit. Bands are quartiles over prompts; dots are minimal circuits, found by a joint search.",
    "curves",
    {
      pictures: () => charts,
      rows: () => [
        ["circuit", "model", "kept", "explained", "lower", "upper"],
        ...rows(task(), "head_circuit"),
        ...rows(task(), "edge_circuit"),
      ],
      value: () =>
        task().models.map(({ model, head_circuit, edge_circuit }) => ({ model, head_circuit, edge_circuit })),
    },
  );
  return redrawOnResize(frame, (width) => {
    const kinds = (["head_circuit", "edge_circuit"] as const).filter((kind) =>
      task().models.some((model) => model[kind]),
    );
    if (!kinds.length) return [el("p", { class: "quiet" }, `No circuit was computed for ${quoted(task().task)}.`)];
    const threshold = selectedThreshold(task(), store.state);
    charts = kinds.map((kind) => circuitChart(task().models, kind, threshold, figureWidth(width, kinds.length, 760)));
    return [el("div", { class: "pair" }, ...charts)];
  });
}

const rows = (task: Task, kind: Kind): Cell[][] =>
  task.models.flatMap((model) => {
    const curve = model[kind]?.curve;
    if (!curve) return [];
    return curve.counts.map((count, i) => [
      COMPONENTS[kind],
      model.model,
      count,
      curve.explained[i],
      curve.lower[i],
      curve.upper[i],
    ]);
  });

function circuitChart(models: ModelCircuit[], kind: Kind, threshold: number, width: number): SVGSVGElement {
  const [names, colours] = [modelTitles(models), modelColours(models.map((model) => model.kind))];
  const sizes = models.map((model) =>
    model[kind] ? prefixSize(model[kind], threshold).toLocaleString("en") : "",
  );
  return chart({
    width,
    label: `Effect explained by the number of ${COMPONENTS[kind]} kept`,
    xLabel: `${COMPONENTS[kind]} kept`,
    yLabel: "explained effect",
    symlog: true,
    y: [Math.min(0, lowest(models, kind)), 1.08],
    format: (value) => percent(value),
    target: {
      value: threshold,
      label: sizes.some(Boolean) ? `most important: ${sizes.filter(Boolean).join(" → ")}` : "",
      below: true,
    },
    series: models.flatMap((model, i) =>
      model[kind] ? [seriesOf(model[kind], names[i]!, colours[i]!), ...minimal(model[kind], names[i]!, colours[i]!)] : [],
    ),
  });
}

/** The minimal circuit, at what it explains of the held-out prompts. */
const minimal = ({ minimal: size, held_out: explained }: ComponentCircuit, name: string, colour: string): Series[] =>
  typeof size === "number" && typeof explained === "number"
    ? [{ name: `${name}, minimal circuit`, colour, points: [[size, explained]], dots: true }]
    : [];

const lowest = (models: ModelCircuit[], kind: Kind): number =>
  Math.max(-0.5, Math.min(...models.flatMap((model) => model[kind]?.curve.explained ?? [0])));

function seriesOf({ curve: { counts, explained, lower, upper } }: ComponentCircuit, name: string, colour: string): Series {
  const hasBand = lower.length === counts.length && upper.length === counts.length;
  return {
    name,
    colour,
    points: counts.map((count, i) => [count, explained[i] ?? 0]),
    band: hasBand ? counts.map((count, i) => [count, lower[i]!, upper[i]!]) : undefined,
  };
}
