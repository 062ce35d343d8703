// Flow: tokens across, layers upward, a line per open edge. Lines of the same strength share a path, so that thousands
// are drawn quickly.
import { svg, zoom } from "../ui/dom";
import { visible } from "../ui/format";
import type { Ancestors, FlowEdge } from "./flow-edges";

export interface FlowOptions {
  tokens: string[];
  answer: string;
  layers: number;
  edges: FlowEdge[];
  width: number;
  colour: string;
  label: string;
  selected: string; // a head
  ancestors: Ancestors | null; // all other edges are faint
}

export interface FlowHandlers {
  /** The pointer or the focus is on a token, or has left it. */
  hover: (token: number | null, at: Element) => void;
  select: (token: number) => void;
}

const STRENGTHS = 6;
const ROW = 44;
const MARGIN = { left: 34, right: 12, top: 30 };

export class FlowPicture {
  readonly element: SVGSVGElement;
  private readonly highlighted = svg("g", { class: "over" });
  private readonly columns: SVGGElement[];
  private readonly columnWidth: number;
  private readonly bottom: number;
  private readonly height: number;
  private readonly rotated: boolean; // labels
  private readonly labels: string[];

  constructor(
    private readonly options: FlowOptions,
    private readonly handlers: FlowHandlers,
  ) {
    const { tokens, layers } = options;
    this.columnWidth = Math.max(13, (options.width - MARGIN.left - MARGIN.right) / tokens.length);
    this.bottom = MARGIN.top + layers * ROW;
    this.rotated = this.columnWidth < 58;
    const maxLength = this.rotated ? 14 : Math.max(4, Math.floor(this.columnWidth / 7));
    this.labels = tokens.map((token) => visible(token, maxLength));
    const longest = Math.max(...this.labels.map((label) => label.length));
    this.height = this.bottom + (this.rotated ? 14 + 6.6 * longest : 34);
    const width = MARGIN.left + MARGIN.right + this.columnWidth * tokens.length;
    this.columns = tokens.map((token, i) => this.column(token, i));
    this.element = svg(
      "svg",
      {
        viewBox: `0 0 ${width} ${this.height}`,
        width: width * zoom(),
        height: this.height * zoom(),
        class: "flow",
        role: "group",
        "aria-label": options.label,
      },
      ...this.layerLabels(),
      ...this.lines(),
      this.highlighted,
      this.answer(width),
      ...this.columns,
    );
  }

  /** Draw what a token reads, and what reads it, over all other edges. */
  highlight(token: number | null): void {
    this.highlighted.replaceChildren();
    if (token === null) return;
    const { edges } = this.options;
    const readers = edges.filter(({ key, query }) => key === token && query !== token);
    const reads = edges.filter(({ query }) => query === token);
    this.highlighted.append(
      svg("path", { d: this.path(readers), class: "read-by" }),
      svg("path", { d: this.path(reads), class: "reads" }),
    );
  }

  private x(position: number): number {
    return MARGIN.left + this.columnWidth * (position + 0.5);
  }

  private y(layer: number): number {
    return this.bottom - layer * ROW;
  }

  private layerLabels(): SVGElement[] {
    return Array.from({ length: this.options.layers }, (_, layer) =>
      svg("text", { class: "tick", x: 2, y: this.y(layer + 0.5) + 4 }, `L${layer}`),
    );
  }

  /** Residual streams, then edges, then those of the selected head. */
  private lines(): SVGElement[] {
    const { tokens, layers, edges, ancestors, selected, colour } = this.options;
    const streams = tokens.map((_, i) => `M${this.x(i)} ${this.y(0)}V${this.y(layers)}`).join("");
    const strong = ancestors ? edges.filter((edge) => ancestors.edges.has(edge)) : edges;
    const ofHead = edges.filter(({ heads }) => heads.some(([name]) => name === selected));
    return [
      svg("path", { d: streams, class: "stream" }),
      ...(ancestors ? [svg("path", { d: this.path(edges), class: "faint" })] : []),
      ...this.byStrength(strong, colour),
      ...(selected ? [svg("path", { d: this.path(ofHead), class: "selected-head" })] : []),
    ];
  }

  private byStrength(edges: FlowEdge[], colour: string): SVGPathElement[] {
    const groups: FlowEdge[][] = Array.from({ length: STRENGTHS }, () => []);
    for (const edge of edges) groups[Math.min(STRENGTHS - 1, Math.floor(edge.weight * STRENGTHS))]!.push(edge);
    return groups.map((group, i) =>
      svg("path", {
        d: this.path(group),
        fill: "none",
        stroke: colour,
        "stroke-width": 0.5 + (2 * (i + 1)) / STRENGTHS,
        "stroke-opacity": 0.12 + (0.8 * (i + 0.5)) / STRENGTHS,
      }),
    );
  }

  private path(edges: FlowEdge[]): string {
    return edges
      .map(({ layer, query, key }) => {
        const [x0, y0, x1, y1] = [this.x(key), this.y(layer), this.x(query), this.y(layer + 1)];
        const middle = (y0 + y1) / 2;
        return `M${x0.toFixed(1)} ${y0}C${x0.toFixed(1)} ${middle} ${x1.toFixed(1)} ${middle} ${x1.toFixed(1)} ${y1}`;
      })
      .join("");
  }

  private answer(width: number): SVGElement | null {
    const { answer, tokens } = this.options;
    if (!answer) return null;
    const x = Math.min(this.x(tokens.length - 1), width - 4);
    return svg("text", { class: "answer", x, y: 14, "text-anchor": "end" }, `→ ${visible(answer, 20)}`);
  }

  /** A token's label and a dot per layer, which react to pointer and keyboard as one. */
  private column(token: string, i: number): SVGGElement {
    const { layers, ancestors, tokens } = this.options;
    const [x, top] = [this.x(i), MARGIN.top - 8];
    const dotStyle = ancestors && !ancestors.tokens.has(i) ? "off" : "";
    const dots = Array.from({ length: layers + 1 }, (_, layer) =>
      svg("circle", { cx: x, cy: this.y(layer), r: 2.2, class: dotStyle }),
    );
    const rotation = `translate(${x}, ${this.bottom + 10}) rotate(-90)`;
    const label = this.rotated
      ? svg("text", { x: 0, y: 4, "text-anchor": "end", transform: rotation }, this.labels[i]!)
      : svg("text", { x, y: this.bottom + 20, "text-anchor": "middle" }, this.labels[i]!);
    const column = svg(
      "g",
      {
        class: "column",
        role: "button",
        tabindex: i === tokens.length - 1 ? 0 : -1,
        "aria-label": `${i + 1} ${visible(token, 40)}`,
      },
      svg("rect", {
        x: x - this.columnWidth / 2,
        y: top,
        width: this.columnWidth,
        height: this.height - top,
        fill: "transparent",
      }),
      ...dots,
      label,
    );
    this.listen(column, i);
    return column;
  }

  private listen(column: SVGGElement, i: number): void {
    const { hover, select } = this.handlers;
    const leave = () => (this.highlight(null), hover(null, column));
    column.addEventListener("pointerenter", () => (this.highlight(i), hover(i, column)));
    column.addEventListener("pointerleave", leave);
    column.addEventListener("focus", () => (this.highlight(i), column.matches(":focus-visible") && hover(i, column)));
    column.addEventListener("blur", leave);
    column.addEventListener("click", () => select(i));
    column.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Enter" || event.key === " ") (event.preventDefault(), select(i));
      if (!step) return;
      event.preventDefault();
      const next = this.columns[Math.min(Math.max(0, i + step), this.columns.length - 1)]!;
      this.columns.forEach((other) => other.setAttribute("tabindex", other === next ? "0" : "-1"));
      next.focus();
    });
  }
}
