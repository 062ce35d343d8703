// Heads by importance: a grid of all heads of each model, layer by layer.
import type { ModelCircuit, Task } from "../data";
import { parseHead } from "../maps/attention-maps";
import { circuitComponents, selectedThreshold } from "../selection";
import { card } from "../ui/card";
import { textOn, weightColour } from "../ui/colour";
import { el, svg } from "../ui/dom";
import { modelTitles, percent } from "../ui/format";
import { onPress, rovingTabindex, type FocusTarget } from "../ui/keyboard";
import { figureWidth, redrawOnResize } from "../ui/redraw";
import { tooltipOn } from "../ui/tooltip";
import type { Context, View } from "../ui/view";

export function headsCard({ store }: Context, task: () => Task, toggleHead: (head: string) => void): View {
  let pictures: SVGSVGElement[] = [];
  const frame = card(
    store,
    "Heads by importance",
    "One cell per head, layers upward. The stronger the colour, the larger the head's importance: the share of the effect that patching it removes or restores. Numbers are ranks, for the heads of the circuit at the threshold. Click a head to select it in all views.",
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
  return redrawOnResize(frame, (width) => {
    const { models } = task();
    const names = modelTitles(models);
    const shown = models.flatMap((model, i) => (model.head_circuit && model.layers ? [{ model, name: names[i]! }] : []));
    if (!shown.length) return [el("p", { class: "quiet" }, "Heads of this task were not ranked.")];
    const threshold = selectedThreshold(task(), store.state);
    const selected = store.state.head;
    const gridWidth = figureWidth(width, shown.length, 760);
    const circuits = shown.map(({ model }) => new Set(circuitComponents(model.head_circuit!, threshold)));
    pictures = shown.map(({ model, name }, i) =>
      headGrid({ model, name, width: gridWidth, circuit: circuits[i]!, selected, toggleHead }),
    );
    const figures = shown.map(({ model, name }, i) => {
      const caption = el("figcaption", {}, el("b", {}, name), ` ${circuits[i]!.size} of ${model.head_circuit!.total} heads`);
      return el("figure", {}, caption, pictures[i]);
    });
    return [el("div", { class: "pair" }, ...figures)];
  });
}

interface GridOptions {
  model: ModelCircuit;
  name: string;
  width: number;
  circuit: Set<string>;
  selected: string;
  toggleHead: (head: string) => void;
}

const LEFT = 30; // of the cells; layers are named beside them

function headGrid({ model, name, width, circuit, selected, toggleHead }: GridOptions): SVGSVGElement {
  const { ranking } = model.head_circuit!;
  const max = Math.max(1e-9, ...ranking.map(([, value]) => value));
  const cellWidth = Math.min(64, (width - LEFT) / model.heads);
  const cellHeight = Math.min(cellWidth, 30);
  const height = model.layers * cellHeight + 20;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "headgrid",
    role: "group",
    "aria-label": `Heads of ${name}`,
  });
  picture.append(...gridLabels(model, cellWidth, cellHeight, height));
  const targets: FocusTarget[] = [];
  ranking.forEach(([head, value], rank) => {
    const at = parseHead(head);
    if (!at) return;
    const [x, y] = [LEFT + at.head * cellWidth, (model.layers - 1 - at.layer) * cellHeight];
    const strength = Math.sqrt(Math.max(0, value) / max);
    const cell = svg(
      "g",
      {
        class: `cell${head === selected ? " selected" : ""}`,
        role: "button",
        "aria-pressed": String(head === selected),
        "aria-label": `${head}, rank ${rank + 1}, importance ${percent(value, 1)}`,
      },
      ...cellShapes({ x, y, width: cellWidth, height: cellHeight }, strength, circuit.has(head) ? rank + 1 : null),
    );
    tooltipOn(cell, `${head}: importance ${percent(value, 1)}`);
    onPress(cell, () => toggleHead(head));
    targets.push({ element: cell, x, y });
    picture.append(cell);
  });
  rovingTabindex(targets, targets.find(({ element }) => element.classList.contains("selected"))?.element);
  return picture;
}

function gridLabels(model: ModelCircuit, cellWidth: number, cellHeight: number, height: number): SVGElement[] {
  const labels: SVGElement[] = [];
  for (let layer = 0; layer < model.layers; layer++)
    labels.push(svg("text", { class: "tick", x: 2, y: (model.layers - layer - 0.5) * cellHeight + 4 }, `L${layer}`));
  for (let head = 0; head < model.heads; head += model.heads > 16 && cellWidth < 22 ? 2 : 1)
    labels.push(
      svg("text", { class: "tick", x: LEFT + (head + 0.5) * cellWidth, y: height - 5, "text-anchor": "middle" }, `H${head}`),
    );
  return labels;
}

/** A cell in the colour of its strength, with its rank if it is in the circuit. */
function cellShapes(
  { x, y, width, height }: { x: number; y: number; width: number; height: number },
  strength: number,
  rank: number | null,
): SVGElement[] {
  const rect = svg("rect", {
    x: x + 1,
    y: y + 1,
    width: width - 2,
    height: height - 2,
    rx: 3,
    fill: weightColour(strength),
    class: rank === null ? "" : "in",
  });
  if (rank === null || width <= 15) return [rect];
  const text = { x: x + width / 2, y: y + height / 2 + 4, "text-anchor": "middle", fill: textOn(strength) };
  return [rect, svg("text", text, `${rank}`)];
}
