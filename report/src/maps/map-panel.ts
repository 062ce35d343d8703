// Attention maps of one model's heads: all on one canvas, with a button over each for keyboard and screen readers.
import { colour, isPrinting } from "../ui/colour";
import { el, onResize, replace, svg, zoom } from "../ui/dom";
import { parseHead, type Head, type AttentionMaps } from "./attention-maps";
import { mapImage, mapCanvas } from "./map-image";
import { hideTooltip, showTooltip } from "../ui/tooltip";
import { percent, quoted } from "../ui/format";

export interface PanelContent {
  maps: AttentionMaps;
  tokens: string[];
  heads: string[]; // in the order of display
  types: string[][];
  importance: (head: string) => number | undefined;
  title: string;
  summary: string;
  selected: string;
  empty: string;
}

interface PlacedHead extends Head {
  name: string;
  x: number;
  y: number;
}

const GAP = 8;
const LABEL = 15;
const SMALLEST = 36;
const LARGEST = 128;
const PAPER = 600; // width when printed

export class MapPanel {
  readonly element: HTMLElement;
  private readonly grid = el("div", { class: "mapgrid", role: "group" });
  private readonly canvas = el("canvas", { "aria-hidden": "true" });
  private readonly title = el("h3");
  private readonly summary = el("p", { class: "summary" });
  private readonly buttons = new Map<string, HTMLButtonElement>();
  private placed: PlacedHead[] = [];
  private side = SMALLEST;
  private width = 0;
  private content: PanelContent | null = null;

  constructor(private readonly choose: (head: string) => void) {
    this.element = el("section", { class: "panel" }, this.title, this.summary, this.grid);
    this.grid.append(this.canvas);
    this.grid.addEventListener("pointermove", (event) => this.hover(event));
    this.grid.addEventListener("pointerleave", hideTooltip);
    this.grid.addEventListener("keydown", (event) => this.moveFocus(event));
    onResize(this.grid, (width) => {
      this.width = width;
      this.draw();
    });
  }

  update(content: PanelContent): void {
    this.content = content;
    this.title.textContent = content.title;
    this.summary.textContent = content.heads.length ? content.summary : content.empty;
    this.grid.setAttribute("aria-label", `Heads of ${content.title}; arrow keys move, Enter enlarges`);
    this.draw();
  }

  private draw(): void {
    const { content, grid, canvas } = this;
    this.width ||= grid.clientWidth; // measured once: reading it while a slider moves forces a layout
    const width = isPrinting() ? Math.min(this.width, PAPER) : this.width;
    if (!content || !width) return;
    const columns = this.layOut(content.heads, width);
    const height = Math.ceil(content.heads.length / columns) * (this.side + LABEL + GAP);
    grid.style.height = `${height}px`;
    const pixelRatio = devicePixelRatio || 1;
    canvas.width = Math.round(width * pixelRatio);
    canvas.height = Math.round(height * pixelRatio);
    canvas.style.width = `${width}px`;
    const context = canvas.getContext("2d")!;
    context.imageSmoothingEnabled = false;
    const [border, mark] = [colour("line"), colour("mark")];
    const toPixels = (value: number) => Math.round(value * pixelRatio);
    for (const { layer, head, name, x, y } of this.placed) {
      const side = toPixels(this.side);
      context.drawImage(mapCanvas(content.maps, layer, head, side), toPixels(x), toPixels(y + LABEL), side, side);
      context.lineWidth = name === content.selected ? 3 * pixelRatio : pixelRatio;
      context.strokeStyle = name === content.selected ? mark : border;
      const half = name === content.selected ? 1.5 * pixelRatio : 0.5 * pixelRatio;
      context.strokeRect(toPixels(x) + half, toPixels(y + LABEL) + half, side - 2 * half, side - 2 * half);
    }
    this.placeButtons(content);
  }

  /** Place the heads, as large as possible with the panel about as high as it is wide; returns the number of columns. */
  private layOut(heads: string[], width: number): number {
    const maxHeight = Math.min(640 * zoom(), Math.max(300, width));
    const maxColumns = Math.max(1, Math.floor((width + GAP) / (SMALLEST + GAP)));
    const largest = LARGEST * zoom();
    const sideOf = (columns: number) => Math.floor(Math.min(largest, (width + GAP) / columns - GAP));
    let columns = Math.min(maxColumns, Math.max(1, Math.floor((width + GAP) / (largest + GAP))));
    while (columns < maxColumns && Math.ceil(heads.length / columns) * (sideOf(columns) + LABEL + GAP) > maxHeight) columns++;
    this.side = Math.max(SMALLEST, sideOf(columns));
    this.placed = heads.flatMap((name, i) => {
      const head = parseHead(name);
      const [row, column] = [Math.floor(i / columns), i % columns];
      return head ? [{ ...head, name, x: column * (this.side + GAP), y: row * (this.side + LABEL + GAP) }] : [];
    });
    return columns;
  }

  private placeButtons(content: PanelContent): void {
    const visibleHeads = new Set(content.heads);
    for (const [name, button] of this.buttons)
      if (button.hidden === visibleHeads.has(name)) button.hidden = !visibleHeads.has(name);
    const reachable = visibleHeads.has(content.selected) ? content.selected : content.heads[0];
    let before: Element = this.canvas;
    for (const { layer, head, name, x, y } of this.placed) {
      const button = this.button(name);
      const share = content.importance(name);
      const details = [content.types[layer]?.[head], share === undefined ? null : `importance ${percent(share, 1)}`].filter(
        Boolean,
      );
      set(button, "aria-label", `${name}, ${details.join(", ")}`);
      set(button, "aria-pressed", String(name === content.selected));
      set(button, "tabindex", name === reachable ? "0" : "-1");
      button.style.transform = `translate(${x}px, ${y}px)`;
      button.style.width = `${this.side}px`;
      button.style.height = `${this.side + LABEL}px`;
      if (before.nextSibling !== button) before.after(button); // reading order
      before = button;
    }
  }

  private button(name: string): HTMLButtonElement {
    let button = this.buttons.get(name);
    if (!button) {
      button = el("button", { type: "button", class: "head", onclick: () => this.choose(name) }, name);
      this.buttons.set(name, button);
    }
    return button;
  }

  /** Move the focus to a head, if it is shown. */
  focus(head: string): boolean {
    const button = this.buttons.get(head);
    if (!button || button.hidden || this.element.hidden) return false;
    button.focus({ preventScroll: true });
    return true;
  }

  private hover(event: PointerEvent): void {
    const box = this.grid.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const inside = (from: number, at: number) => at >= from && at < from + this.side;
    const placed = this.placed.find((head) => inside(head.x, x) && inside(head.y + LABEL, y));
    if (!placed || !this.content) return hideTooltip();
    const { maps, tokens, types } = this.content;
    const cell = this.side / maps.length;
    const [query, key] = [Math.floor((y - placed.y - LABEL) / cell), Math.floor((x - placed.x) / cell)];
    const type = types[placed.layer]?.[placed.head] ?? "";
    showTooltip(
      event.clientX,
      event.clientY,
      ...cellTooltip(placed.name, type, tokens, query, key, maps.weight(placed.layer, placed.head, query, key)),
    );
  }

  private moveFocus(event: KeyboardEvent): void {
    const now = this.placed.findIndex(({ name }) => this.buttons.get(name) === document.activeElement);
    const columns = this.placed.filter(({ y }) => y === 0).length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (now < 0 || !step) return;
    event.preventDefault();
    const next = this.placed[Math.min(Math.max(0, now + step), this.placed.length - 1)]!;
    for (const [name, button] of this.buttons) button.tabIndex = name === next.name ? 0 : -1;
    this.buttons.get(next.name)!.focus();
  }

  /** The panel as SVG, for a download, with its left edge at `left`. */
  picture(left: number): { group: SVGGElement; width: number; height: number } {
    const group = svg("g", { transform: `translate(${left}, 8)`, "font-family": "sans-serif" });
    const text = { fill: colour("ink"), "font-size": 14, "font-weight": "bold" };
    group.append(
      svg("text", { x: 0, y: 16, ...text }, this.content?.title ?? ""),
      svg("text", { x: 0, y: 34, fill: colour("quiet"), "font-size": 11 }, this.summary.textContent),
    );
    for (const { layer, head, name, x, y } of this.placed) {
      const top = y + LABEL + 44;
      const selected = name === this.content?.selected;
      group.append(
        svg("text", { x, y: top - 4, fill: colour("ink"), "font-size": 10 }, name),
        mapImage(this.content!.maps, layer, head, { x, y: top, side: this.side }),
        svg("rect", {
          x,
          y: top,
          width: this.side,
          height: this.side,
          fill: "none",
          stroke: colour(selected ? "mark" : "line"),
          "stroke-width": selected ? 2 : 1,
        }),
      );
    }
    return { group, width: this.grid.clientWidth, height: 60 + parseFloat(this.grid.style.height || "0") };
  }
}

/** Set an attribute if it differs: most buttons stay as they are while a slider moves. */
function set(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Query, key and attention weight of a cell. */
export function cellTooltip(
  name: string,
  type: string,
  tokens: string[],
  query: number,
  key: number,
  weight: number,
): HTMLElement[] {
  const heading = el("div", {}, el("b", {}, name), type ? ` ${type}` : "");
  if (key > query) return [heading, el("div", { class: "quiet" }, "masked: the key is after the query")];
  const list = el("dl", {});
  replace(
    list,
    el("dt", {}, "query"),
    el("dd", {}, `${query + 1} ${quoted(tokens[query])}`),
    el("dt", {}, "key"),
    el("dd", {}, `${key + 1} ${quoted(tokens[key])}`),
    el("dt", {}, "attention weight"),
    el("dd", {}, weight ? weight.toFixed(3) : "0, closed"),
  );
  return [heading, list];
}
