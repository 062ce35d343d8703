// How much of the effect the best heads, or edges, explain.
import { card } from "./card";
import { chart } from "./chart";
import { needed, thresholdOf } from "./chosen";
import { modelColours } from "./colour";
import type { Found, ModelCircuit, Task } from "./data";
import { el } from "./dom";
import { drawn } from "./drawn";
import type { Context, View } from "./view";
import { percent, quoted, titles } from "./words";

type Kind = "head_circuit" | "edge_circuit";

export function curveCard({ store }: Context, task: () => Task): View {
  let charts: SVGSVGElement[] = [];
  const points = (kind: Kind, name: string) =>
    task().models.flatMap((model) => {
      const curve = model[kind]?.curve;
      return (curve?.counts ?? []).map((many, i) => [
        name,
        model.model,
        many,
        curve!.explained[i],
        curve!.lower[i],
        curve!.upper[i],
      ]);
    });
  const frame = card(
    store,
    "Circuit curves",
    "Keep the best heads (or edges), corrupt all others: how much of the effect is left? The further left a curve rises, the smaller the circuit. Bands are quartiles over prompts.",
    "curves",
    {
      pictures: () => charts,
      rows: () => [
        ["circuit", "model", "kept", "explained", "lower", "upper"],
        ...points("head_circuit", "heads"),
        ...points("edge_circuit", "edges"),
      ],
      value: () =>
        task().models.map(({ model, head_circuit, edge_circuit }) => ({ model, head_circuit, edge_circuit })),
    },
  );
  return drawn(frame, (width) => {
    const { models } = task();
    const [names, colours] = [titles(models), modelColours(models.map((model) => model.kind))];
    const threshold = thresholdOf(task(), store.state);
    const kinds = (["head_circuit", "edge_circuit"] as Kind[]).filter((kind) => models.some((model) => model[kind]));
    if (!kinds.length) return [el("p", { class: "quiet" }, `No circuit of ${quoted(task().task)} was looked for.`)];
    const wide = width > 700 && kinds.length > 1 ? (width - 24) / 2 : Math.min(width, 760);
    charts = kinds.map((kind) => {
      const what = kind === "head_circuit" ? "heads" : "edges";
      const picture = chart({
        width: wide,
        label: `Share of the effect by ${what} kept`,
        xLabel: `${what} kept`,
        yLabel: "effect explained",
        steep: true,
        y: [Math.min(0, lowest(models, kind)), 1.08],
        format: (value) => percent(value),
        mark: {
          at: threshold,
          label: models
            .map((model, i) => (model[kind] ? `${names[i]}: ${needed(model[kind]!, threshold)}` : ""))
            .filter(Boolean)
            .join(", "),
        },
        series: models.flatMap((model, i) => (model[kind] ? [seriesOf(model[kind]!, names[i]!, colours[i]!)] : [])),
      });
      return picture;
    });
    return [el("div", { class: "pair" }, ...charts)];
  });
}

const lowest = (models: ModelCircuit[], kind: Kind): number =>
  Math.max(-0.5, Math.min(...models.flatMap((model) => model[kind]?.curve.explained ?? [0])));

function seriesOf({ curve }: Found, name: string, colour: string) {
  const points = curve.counts.map((many, i): [number, number] => [many, curve.explained[i] ?? 0]);
  const whole = curve.lower.length === points.length && curve.upper.length === points.length;
  return {
    name,
    colour,
    points,
    band: whole
      ? curve.counts.map((many, i): [number, number, number] => [many, curve.lower[i]!, curve.upper[i]!])
      : undefined,
  };
}
