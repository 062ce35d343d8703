// The wiring of both models, with as many edges as the slider says.
import { card } from "./card";
import { needed, thresholdOf } from "./chosen";
import { modelColours } from "./colour";
import type { Task } from "./data";
import { el } from "./dom";
import { drawn } from "./drawn";
import { legend } from "./task-card";
import type { Context, View } from "./view";
import { wiring } from "./wiring";
import { percent, quoted, titles } from "./words";

export function wiringCard({ store }: Context, task: () => Task, choose: (head: string) => void): View {
  const pictures: SVGSVGElement[] = [];
  const most = () => Math.max(1, ...task().models.map((model) => model.edge_circuit?.ranking.length ?? 0));
  const frame = card(
    store,
    "Wiring",
    "The strongest edges of the circuit, from the embedding below to the logits above; the wider, the more goes along it. Discs are the heads of the circuit; each layer's MLP stands at its right.",
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
  const output = el("output", {});
  const input = el("input", {
    type: "range",
    min: 1,
    step: 1,
    "aria-label": "Edges drawn",
    oninput: () => store.set({ edges: Number(input.value) }),
  });
  frame.body.append(
    el("div", { class: "controls" }, el("label", { class: "field slider" }, el("span", {}, "Edges ", output), input)),
  );
  return drawn(frame, (width) => {
    pictures.length = 0;
    const { models } = task();
    const shown = models.flatMap((model, i) => (model.edge_circuit && model.layers ? [{ model, i }] : []));
    input.parentElement!.hidden = !shown.length;
    if (!shown.length) return [el("p", { class: "quiet" }, `Edges of ${quoted(task().task)} were not looked for.`)];
    input.max = String(most());
    const many = Math.min(Math.max(1, Math.round(store.state.edges)), most());
    input.value = String(many);
    output.textContent = String(many);
    const [names, colours] = [titles(models), modelColours(models.map((model) => model.kind))];
    const threshold = thresholdOf(task(), store.state);
    const wide = width > 700 && shown.length > 1 ? (width - 24) / 2 : Math.min(width, 900);
    return [
      legend(models),
      el(
        "div",
        { class: "pair" },
        ...shown.map(({ model, i }) => {
          const circuit = new Set(
            model.head_circuit?.ranking.slice(0, needed(model.head_circuit, threshold)).map(([name]) => name),
          );
          const picture = wiring({
            width: wide,
            layers: model.layers,
            heads: model.heads,
            edges: model.edge_circuit!.ranking.slice(0, many),
            circuit,
            lit: store.state.head,
            colour: colours[i]!,
            label: `Wiring of ${names[i]}`,
            choose,
          });
          pictures.push(picture);
          return el(
            "figure",
            {},
            el(
              "figcaption",
              {},
              el("b", {}, names[i]!),
              ` ${many} of the ${needed(model.edge_circuit!, threshold)} edges that carry ${percent(threshold)}`,
            ),
            picture,
          );
        }),
      ),
    ];
  });
}
