// The strongest edges of a circuit between the parts of a model: layers upward, heads across, each layer's MLP at the right.
import { svg } from "./dom";
import { press, rove, type Stop } from "./rove";
import { hideTip, showTip } from "./tip";
import { short } from "./words";

export interface WiringOptions {
  width: number;
  layers: number;
  heads: number;
  edges: [string, number][];
  circuit: Set<string>; // heads
  lit: string;
  colour: string;
  label: string;
  choose: (head: string) => void;
}

interface Place {
  x: number;
  y: number;
  name: string;
}

export function wiring(options: WiringOptions): SVGSVGElement {
  const { width, layers, heads, edges, lit, circuit } = options;
  const row = Math.min(64, Math.max(38, 420 / layers));
  const height = 52 + row * (layers + 1);
  const left = 34;
  const column = (width - left - 12) / (heads + 1.4);
  const y = (layer: number) => height - 30 - row * (layer + 0.75);
  const head = (layer: number, number: number): Place => ({
    x: left + column * (number + 0.5),
    y: y(layer),
    name: `L${layer}H${number}`,
  });
  const groups = 1 + Math.max(-1, ...edges.map(([name]) => Number(/L\d+G(\d+)\./.exec(name)?.[1] ?? -1)));
  const place = (name: string): Place | null => {
    if (name === "embedding") return { x: width / 2, y: height - 14, name };
    if (name === "logits") return { x: width / 2, y: 18, name };
    const mlp = /^MLP (\d+)$/.exec(name);
    if (mlp) return { x: left + column * (heads + 0.7), y: y(Number(mlp[1])) - row * 0.3, name };
    const found = /^L(\d+)([HG])(\d+)(?:\.[qkv])?$/.exec(name);
    if (!found) return null;
    const number = Number(found[3]);
    // heads that share a key or value stand beside each other: the line enters in their middle
    return head(Number(found[1]), found[2] === "G" ? ((number + 0.5) * heads) / groups - 0.5 : number);
  };
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "wiring",
    role: "group",
    "aria-label": options.label,
  });
  for (let layer = 0; layer < layers; layer++)
    picture.append(svg("text", { class: "tick", x: 2, y: y(layer) + 4 }, `L${layer}`));
  const most = Math.max(1e-12, ...edges.map(([, value]) => Math.abs(value)));
  const touched = new Set<string>();
  const lines = edges.flatMap(([name, value]) => {
    const [from, to] = name.split(" -> ");
    const [a, b] = [place(from ?? ""), place(to ?? "")];
    if (!a || !b) return [];
    [a.name, b.name].forEach((each) => touched.add(each));
    const on = lit !== "" && (a.name === lit || b.name === lit);
    const middle = (a.y + b.y) / 2;
    const line = svg("path", {
      d: `M${a.x} ${a.y}C${a.x} ${middle} ${b.x} ${middle} ${b.x} ${b.y}`,
      class: on ? "wire on" : lit && touchesAny(edges, lit) ? "wire off" : "wire",
      stroke: options.colour,
      "stroke-width": 0.6 + 5 * Math.sqrt(Math.abs(value) / most),
    });
    line.addEventListener("pointermove", (event) =>
      showTip(event.clientX, event.clientY, `${name.replace("->", "→")}: ${short(value)}`),
    );
    line.addEventListener("pointerleave", hideTip);
    return [line];
  });
  picture.append(...lines);
  const names = ["embedding", "logits", ...Array.from({ length: layers }, (_, i) => `MLP ${i}`)];
  for (const name of names) {
    const { x, y: at } = place(name)!;
    const wide = name.startsWith("MLP") ? Math.min(44, column + 6) : 74;
    picture.append(
      svg(
        "g",
        { class: touched.has(name) ? "part" : "part off" },
        svg("rect", { x: x - wide / 2, y: at - 9, width: wide, height: 18, rx: 5 }),
        svg("text", { x, y: at + 4, "text-anchor": "middle" }, name.replace("MLP ", column < 30 ? "M" : "MLP ")),
      ),
    );
  }
  const size = Math.min(13, column * 0.42);
  const stops: Stop[] = [];
  for (let layer = 0; layer < layers; layer++)
    for (let number = 0; number < heads; number++) {
      const { x, y: at, name } = head(layer, number);
      const kind = `knot${circuit.has(name) || touched.has(name) ? "" : " off"}${name === lit ? " lit" : ""}`;
      const knot = svg(
        "g",
        {
          class: kind,
          role: "button",
          "aria-pressed": String(name === lit),
          "aria-label": `Head ${number} of layer ${layer}, ${name}${circuit.has(name) ? ", in the circuit" : ""}`,
        },
        svg("circle", { cx: x, cy: at, r: circuit.has(name) ? size : size * 0.6, stroke: options.colour }),
        column > 30
          ? svg("text", { x, y: at + 3.5, "text-anchor": "middle" }, circuit.has(name) ? `${number}` : "")
          : null,
      );
      press(knot, () => options.choose(name));
      stops.push({ element: knot, x, y: at });
      knot.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, name));
      knot.addEventListener("pointerleave", hideTip);
      picture.append(knot);
    }
  rove(stops, stops.find((stop) => stop.element.classList.contains("lit"))?.element);
  return picture;
}

const touchesAny = (edges: [string, number][], head: string): boolean =>
  edges.some(([name]) => name.split(" -> ").some((end) => end.replace(/\.[qkv]$/, "") === head));
