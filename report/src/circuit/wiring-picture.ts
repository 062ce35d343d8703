// Edges of a circuit between heads, MLPs, embedding and logits: layers upward, heads across, each layer's MLP at its right.
import { svg } from "../ui/dom";
import { shortNumber } from "../ui/format";
import { onPress, rovingTabindex, type FocusTarget } from "../ui/keyboard";
import { tooltipOn } from "../ui/tooltip";

export interface WiringOptions {
  width: number;
  layers: number;
  heads: number;
  edges: [string, number][];
  circuit: Set<string>; // heads
  selected: string;
  colour: string;
  label: string;
  toggleHead: (head: string) => void;
}

interface Component {
  name: string;
  x: number;
  y: number;
}

interface Layout {
  height: number;
  column: number; // width of a head's column
  layerY: (layer: number) => number;
  headAt: (layer: number, head: number) => Component;
  /** The component at an end of an edge: embedding, logits, MLP 3, L3H1, L3H1.q or L3G0.k. */
  find: (name: string) => Component | null;
}

export function wiringPicture(options: WiringOptions): SVGSVGElement {
  const { width, layers } = options;
  const layout = layOut(options);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${layout.height}`,
    class: "wiring",
    role: "group",
    "aria-label": options.label,
  });
  for (let layer = 0; layer < layers; layer++)
    picture.append(svg("text", { class: "tick", x: 2, y: layout.layerY(layer) + 4 }, `L${layer}`));
  const { lines, joined } = drawEdges(options, layout);
  picture.append(...lines, ...drawOthers(layers, layout, joined), ...drawHeads(options, layout, joined));
  return picture;
}

function layOut({ width, layers, heads, edges }: WiringOptions): Layout {
  const row = Math.min(64, Math.max(38, 420 / layers));
  const height = 52 + row * (layers + 1);
  const left = 34;
  const column = (width - left - 12) / (heads + 1.4);
  const layerY = (layer: number) => height - 30 - row * (layer + 0.75);
  const headAt = (layer: number, head: number): Component => ({
    name: `L${layer}H${head}`,
    x: left + column * (head + 0.5),
    y: layerY(layer),
  });
  const groups = 1 + Math.max(-1, ...edges.map(([name]) => Number(/L\d+G(\d+)\./.exec(name)?.[1] ?? -1)));
  const find = (name: string): Component | null => {
    if (name === "embedding") return { x: width / 2, y: height - 14, name };
    if (name === "logits") return { x: width / 2, y: 18, name };
    const mlp = /^MLP (\d+)$/.exec(name);
    if (mlp) return { x: left + column * (heads + 0.7), y: layerY(Number(mlp[1])) - row * 0.3, name };
    const match = /^L(\d+)([HG])(\d+)(?:\.[qkv])?$/.exec(name);
    if (!match) return null;
    const number = Number(match[3]);
    // heads that share a key-value head are neighbours: the line enters in their middle
    return headAt(Number(match[1]), match[2] === "G" ? ((number + 0.5) * heads) / groups - 0.5 : number);
  };
  return { height, column, layerY, headAt, find };
}

/** The lines, and the names of the components that they join. */
function drawEdges({ edges, selected, colour }: WiringOptions, { find }: Layout) {
  const max = Math.max(1e-12, ...edges.map(([, value]) => Math.abs(value)));
  const fadeOthers = selected !== "" && joins(edges, selected);
  const joined = new Set<string>();
  const lines = edges.flatMap(([name, value]) => {
    const [source, target] = name.split(" -> ").map(find);
    if (!source || !target) return [];
    [source.name, target.name].forEach((component) => joined.add(component));
    const own = selected !== "" && (source.name === selected || target.name === selected);
    const middle = (source.y + target.y) / 2;
    const line = svg("path", {
      d: `M${source.x} ${source.y}C${source.x} ${middle} ${target.x} ${middle} ${target.x} ${target.y}`,
      class: `wire${own ? " on" : fadeOthers ? " off" : ""}${value < 0 ? " minus" : ""}`,
      stroke: colour,
      "stroke-width": 0.6 + 5 * Math.sqrt(Math.abs(value) / max),
    });
    tooltipOn(line, `${name.replace("->", "→")}: ${shortNumber(value)}`);
    return [line];
  });
  return { lines, joined };
}

const joins = (edges: [string, number][], head: string): boolean =>
  edges.some(([name]) => name.split(" -> ").some((end) => end.replace(/\.[qkv]$/, "") === head));

/** Embedding, logits and MLPs. */
function drawOthers(layers: number, { find, column }: Layout, joined: Set<string>): SVGElement[] {
  const names = ["embedding", "logits", ...Array.from({ length: layers }, (_, layer) => `MLP ${layer}`)];
  return names.map((name) => {
    const { x, y } = find(name)!;
    const width = name.startsWith("MLP") ? Math.min(44, column + 6) : 74;
    return svg(
      "g",
      { class: joined.has(name) ? "part" : "part off" },
      svg("rect", { x: x - width / 2, y: y - 9, width, height: 18, rx: 5 }),
      svg("text", { x, y: y + 4, "text-anchor": "middle" }, name.replace("MLP ", column < 30 ? "M" : "MLP ")),
    );
  });
}

function drawHeads(options: WiringOptions, { headAt, column }: Layout, joined: Set<string>): SVGElement[] {
  const { layers, heads, circuit, selected, colour, toggleHead } = options;
  const radius = Math.min(13, column * 0.42);
  const targets: FocusTarget[] = [];
  for (let layer = 0; layer < layers; layer++)
    for (let head = 0; head < heads; head++) {
      const { x, y, name } = headAt(layer, head);
      const inCircuit = circuit.has(name);
      const disc = svg(
        "g",
        {
          class: `head-disc${inCircuit || joined.has(name) ? "" : " off"}${name === selected ? " selected" : ""}`,
          role: "button",
          "aria-pressed": String(name === selected),
          "aria-label": `Head ${head} of layer ${layer}, ${name}${inCircuit ? ", in the circuit" : ""}`,
        },
        svg("circle", { cx: x, cy: y, r: inCircuit ? radius : radius * 0.6, stroke: colour }),
        column > 30 ? svg("text", { x, y: y + 3.5, "text-anchor": "middle" }, inCircuit ? `${head}` : "") : null,
      );
      onPress(disc, () => toggleHead(name));
      tooltipOn(disc, name);
      targets.push({ element: disc, x, y });
    }
  rovingTabindex(targets, targets.find(({ element }) => element.classList.contains("selected"))?.element);
  return targets.map(({ element }) => element);
}
