// Tokens across, layers upward, a line for each open edge. Lines of a kind share one path, so that thousands stay quick.
import { svg, zoom } from "./dom";
import type { FlowEdge } from "./flow-edges";
import { visible } from "./words";

export interface FlowOptions {
  tokens: string[];
  answer: string;
  layers: number;
  edges: FlowEdge[];
  width: number;
  colour: string;
  label: string;
  lit: string; // a head
  kept: { edges: Set<FlowEdge>; tokens: Set<number> } | null; // the others are faint
}

const SHADES = 6;
const ROW = 44;

export class FlowPicture {
  readonly element: SVGSVGElement;
  private readonly over = svg("g", { class: "over" });
  private readonly x: (position: number) => number;
  private readonly y: (layer: number) => number;
  private readonly columns: SVGGElement[] = [];

  constructor(
    private readonly options: FlowOptions,
    look: (token: number | null, at: Element) => void,
    keep: (token: number) => void,
  ) {
    const { tokens, layers, edges, kept, lit } = options;
    const edge = { left: 34, right: 12, top: 30 };
    const column = Math.max(13, (options.width - edge.left - edge.right) / tokens.length);
    const width = edge.left + edge.right + column * tokens.length;
    const bottom = edge.top + layers * ROW;
    const turned = column < 58;
    const labels = tokens.map((token) => visible(token, turned ? 14 : Math.max(4, Math.floor(column / 7))));
    const height = bottom + (turned ? 14 + 6.6 * Math.max(...labels.map((label) => label.length)) : 34);
    this.x = (position) => edge.left + column * (position + 0.5);
    this.y = (layer) => bottom - layer * ROW;
    const picture = svg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width: width * zoom(),
      height: height * zoom(),
      class: "flow",
      role: "group",
      "aria-label": options.label,
    });
    for (let layer = 0; layer < layers; layer++)
      picture.append(svg("text", { class: "tick", x: 2, y: this.y(layer + 0.5) + 4 }, `L${layer}`));
    const stream = tokens.map((_, i) => `M${this.x(i)} ${this.y(0)}V${this.y(layers)}`).join("");
    picture.append(svg("path", { d: stream, class: "stream" }));
    const strong = kept ? edges.filter((each) => kept.edges.has(each)) : edges;
    if (kept) picture.append(svg("path", { d: this.lines(edges), class: "faint" }));
    picture.append(...this.shades(strong, options.colour));
    if (lit)
      picture.append(
        svg("path", {
          d: this.lines(edges.filter((each) => each.heads.some(([name]) => name === lit))),
          class: "litline",
        }),
      );
    picture.append(this.over);
    const last = tokens.length - 1;
    if (options.answer)
      picture.append(
        svg(
          "text",
          { class: "answer", x: Math.min(this.x(last), width - 4), y: 14, "text-anchor": "end" },
          `→ ${visible(options.answer, 20)}`,
        ),
      );
    tokens.forEach((token, i) => {
      const group = svg("g", {
        class: "column",
        role: "button",
        tabindex: i === last ? 0 : -1,
        "aria-label": `${i + 1} ${visible(token, 40)}`,
      });
      group.append(
        svg("rect", {
          x: this.x(i) - column / 2,
          y: edge.top - 8,
          width: column,
          height: height - edge.top + 8,
          fill: "transparent",
        }),
      );
      for (let layer = 0; layer <= layers; layer++)
        group.append(
          svg("circle", { cx: this.x(i), cy: this.y(layer), r: 2.2, class: kept && !kept.tokens.has(i) ? "off" : "" }),
        );
      group.append(
        turned
          ? svg(
              "text",
              { x: 0, y: 4, "text-anchor": "end", transform: `translate(${this.x(i)}, ${bottom + 10}) rotate(-90)` },
              labels[i]!,
            )
          : svg("text", { x: this.x(i), y: bottom + 20, "text-anchor": "middle" }, labels[i]!),
      );
      group.addEventListener("pointerenter", () => (this.light(i), look(i, group)));
      group.addEventListener("pointerleave", () => (this.light(null), look(null, group)));
      group.addEventListener("focus", () => (this.light(i), group.matches(":focus-visible") && look(i, group)));
      group.addEventListener("blur", () => (this.light(null), look(null, group)));
      group.addEventListener("click", () => keep(i));
      group.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (event.key === "Enter" || event.key === " ") (event.preventDefault(), keep(i));
        if (!step) return;
        event.preventDefault();
        const next = this.columns[Math.min(Math.max(0, i + step), last)]!;
        this.columns.forEach((each) => each.setAttribute("tabindex", each === next ? "0" : "-1"));
        next.focus();
      });
      this.columns.push(group);
      picture.append(group);
    });
    this.element = picture;
  }

  /** What a token reads and who reads it, over all others. */
  light(token: number | null): void {
    this.over.replaceChildren();
    if (token === null) return;
    const { edges } = this.options;
    this.over.append(
      svg("path", {
        d: this.lines(edges.filter((each) => each.key === token && each.query !== token)),
        class: "read-by",
      }),
      svg("path", { d: this.lines(edges.filter((each) => each.query === token)), class: "reads" }),
    );
  }

  private shades(edges: FlowEdge[], colour: string): SVGPathElement[] {
    const groups: FlowEdge[][] = Array.from({ length: SHADES }, () => []);
    for (const edge of edges) groups[Math.min(SHADES - 1, Math.floor(edge.weight * SHADES))]!.push(edge);
    return groups.map((group, i) =>
      svg("path", {
        d: this.lines(group),
        fill: "none",
        stroke: colour,
        "stroke-width": 0.5 + (2 * (i + 1)) / SHADES,
        "stroke-opacity": 0.12 + (0.8 * (i + 0.5)) / SHADES,
      }),
    );
  }

  private lines(edges: FlowEdge[]): string {
    return edges
      .map(({ layer, query, key }) => {
        const [x0, y0, x1, y1] = [this.x(key), this.y(layer), this.x(query), this.y(layer + 1)];
        const middle = (y0 + y1) / 2;
        return `M${x0.toFixed(1)} ${y0}C${x0.toFixed(1)} ${middle} ${x1.toFixed(1)} ${middle} ${x1.toFixed(1)} ${y1}`;
      })
      .join("");
  }
}
