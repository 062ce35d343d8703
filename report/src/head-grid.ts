// All heads of a model by layer, the stronger the colour, the more important.
import { card } from "./card";
import { needed, thresholdOf } from "./chosen";
import { blue, inkOn } from "./colour";
import type { ModelCircuit, Task } from "./data";
import { el, svg } from "./dom";
import { drawn } from "./drawn";
import { press, rove, type Stop } from "./rove";
import { hideTip, showTip } from "./tip";
import type { Context, View } from "./view";
import { percent, titles } from "./words";

export function headCard({ store }: Context, task: () => Task, choose: (head: string) => void): View {
  const pictures: SVGSVGElement[] = [];
  const frame = card(
    store,
    "Heads by importance",
    "One cell for each head, layers upward: the stronger its colour, the more of the effect is lost without it. Numbered are the heads of the circuit at the threshold, the most important first; click one to light it everywhere.",
    "heads",
    {
      pictures: () => pictures,
      rows: () => [
        ["model", "rank", "head", "importance"],
        ...task().models.flatMap((model) =>
          (model.head_circuit?.ranking ?? []).map(([name, value], i) => [model.model, i + 1, name, value]),
        ),
      ],
    },
  );
  return drawn(frame, (width) => {
    pictures.length = 0;
    const { models } = task();
    const shown = models.flatMap((model, i) =>
      model.head_circuit && model.layers ? [{ model, name: titles(models)[i]! }] : [],
    );
    if (!shown.length) return [el("p", { class: "quiet" }, "Heads of this task were not ranked.")];
    const wide = width > 700 && shown.length > 1 ? (width - 24) / 2 : Math.min(width, 760);
    return [
      el(
        "div",
        { class: "pair" },
        ...shown.map(({ model, name }) => {
          const picture = headGrid(model, name, wide, thresholdOf(task(), store.state), store.state.head, choose);
          pictures.push(picture);
          return el(
            "figure",
            {},
            el(
              "figcaption",
              {},
              el("b", {}, name),
              ` ${needed(model.head_circuit!, thresholdOf(task(), store.state))} of ${model.head_circuit!.total} heads`,
            ),
            picture,
          );
        }),
      ),
    ];
  });
}

function headGrid(
  model: ModelCircuit,
  title: string,
  width: number,
  threshold: number,
  lit: string,
  choose: (head: string) => void,
): SVGSVGElement {
  const { ranking } = model.head_circuit!;
  const kept = needed(model.head_circuit!, threshold);
  const most = Math.max(1e-9, ...ranking.map(([, value]) => value));
  const left = 30;
  const cell = Math.min(64, (width - left) / model.heads);
  const tall = Math.min(cell, 30);
  const height = model.layers * tall + 20;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "headgrid",
    role: "group",
    "aria-label": `Heads of ${title}`,
  });
  for (let layer = 0; layer < model.layers; layer++)
    picture.append(svg("text", { class: "tick", x: 2, y: (model.layers - layer - 0.5) * tall + 4 }, `L${layer}`));
  for (let head = 0; head < model.heads; head += model.heads > 16 && cell < 22 ? 2 : 1)
    picture.append(
      svg("text", { class: "tick", x: left + (head + 0.5) * cell, y: height - 5, "text-anchor": "middle" }, `H${head}`),
    );
  const stops: Stop[] = [];
  ranking.forEach(([name, value], rank) => {
    const found = /^L(\d+)H(\d+)$/.exec(name);
    if (!found) return;
    const [x, y] = [left + Number(found[2]) * cell, (model.layers - 1 - Number(found[1])) * tall];
    const share = Math.sqrt(Math.max(0, value) / most);
    const group = svg(
      "g",
      {
        class: `cell${name === lit ? " lit" : ""}`,
        role: "button",
        "aria-pressed": String(name === lit),
        "aria-label": `${name}, rank ${rank + 1}, importance ${percent(value, 1)}`,
      },
      svg("rect", {
        x: x + 1,
        y: y + 1,
        width: cell - 2,
        height: tall - 2,
        rx: 3,
        fill: blue(share),
        class: rank < kept ? "in" : "",
      }),
      rank < kept && cell > 15
        ? svg(
            "text",
            { x: x + cell / 2, y: y + tall / 2 + 4, "text-anchor": "middle", fill: inkOn(share) },
            `${rank + 1}`,
          )
        : null,
    );
    group.addEventListener("pointermove", (event) =>
      showTip(event.clientX, event.clientY, `${name}: ${percent(value, 1)}`),
    );
    group.addEventListener("pointerleave", hideTip);
    press(group, () => choose(name));
    stops.push({ element: group, x, y });
    picture.append(group);
  });
  rove(stops, stops.find((stop) => stop.element.classList.contains("lit"))?.element);
  return picture;
}
