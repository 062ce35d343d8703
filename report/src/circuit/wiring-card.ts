// Wiring: the strongest edges of each model's circuit, as many as the slider says.
import type { Task } from "../data";
import { circuitComponents, circuitSize, selectedThreshold } from "../selection";
import { card } from "../ui/card";
import { modelColours } from "../ui/colour";
import { slider } from "../ui/controls";
import { el } from "../ui/dom";
import { modelTitles, percent, quoted } from "../ui/format";
import { legend } from "../ui/legend";
import { figureWidth, redrawOnResize } from "../ui/redraw";
import type { Context, View } from "../ui/view";
import { wiringPicture } from "./wiring-picture";

export function wiringCard({ store }: Context, task: () => Task, toggleHead: (head: string) => void): View {
  let pictures: SVGSVGElement[] = [];
  const frame = card(
    store,
    "Wiring",
    "The strongest edges of the circuit, from the embedding (bottom) to the logits (top); line width is the edge's attribution score, orange ones are negative. Large circles are the heads of the circuit, small ones those that only its edges join; each layer's MLP is at its right.",
    "wiring",
    {
      pictures: () => pictures,
      rows: () => [
        ["model", "edge", "attribution"],
        ...task().models.flatMap((model) =>
          (model.edge_circuit?.ranking ?? []).map(([name, value]) => [model.model, name, value]),
        ),
      ],
    },
  );
  const { element, input, output } = slider("Edges", "Edges drawn", { min: 1, step: 1 }, (edges) => store.set({ edges }));
  frame.body.append(el("div", { class: "controls" }, element));
  return redrawOnResize(frame, (width) => {
    const { models } = task();
    const indices = [...models.keys()].filter((i) => models[i]!.edge_circuit && models[i]!.layers);
    element.hidden = !indices.length;
    if (!indices.length) return [el("p", { class: "quiet" }, `No edges were computed for ${quoted(task().task)}.`)];
    const max = Math.max(1, ...models.map((model) => model.edge_circuit?.ranking.length ?? 0));
    const count = Math.min(Math.max(1, Math.round(store.state.edges)), max);
    input.max = String(max);
    input.value = output.textContent = String(count);
    const [names, colours] = [modelTitles(models), modelColours(models.map((model) => model.kind))];
    const threshold = selectedThreshold(task(), store.state);
    pictures = indices.map((i) => {
      const { layers, heads, head_circuit: circuit, edge_circuit: edges } = models[i]!;
      const kept = circuit ? circuitComponents(circuit, threshold) : [];
      return wiringPicture({
        width: figureWidth(width, indices.length, 900),
        layers,
        heads,
        edges: edges!.ranking.slice(0, count),
        circuit: new Set(kept),
        selected: store.state.head,
        colour: colours[i]!,
        label: `Wiring of ${names[i]}`,
        toggleHead,
      });
    });
    const figures = indices.map((i, figure) => {
      const size = circuitSize(models[i]!.edge_circuit!, threshold);
      const text = ` ${count} strongest edges; ${size} explain ${percent(threshold)} of the effect`;
      return el("figure", {}, el("figcaption", {}, el("b", {}, names[i]!), text), pictures[figure]);
    });
    return [legend(models), el("div", { class: "pair" }, ...figures)];
  });
}
