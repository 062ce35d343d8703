// One model's heads: all maps on one canvas, and over each a button, which the keyboard and a screen reader can reach.
import { colour, isPrinting } from "./colour";
import { el, onResize, replace, svg, zoom } from "./dom";
import { parseHead, type Head, type Maps } from "./maps";
import { mapImage, painted } from "./paint";
import { hideTip, showTip } from "./tip";
import { percent, quoted } from "./words";

export interface Shown {
  maps: Maps;
  tokens: string[];
  heads: string[]; // in their order
  types: string[][];
  share: (head: string) => number | undefined;
  title: string;
  summary: string;
  lit: string;
  empty: string;
}

interface Placed extends Head {
  name: string;
  x: number;
  y: number;
}

const GAP = 8;
const LABEL = 15;
const SMALLEST = 36;
const LARGEST = 128;
const PAPER = 600; // as wide as a page

export class MapPanel {
  readonly element: HTMLElement;
  private readonly grid = el("div", { class: "mapgrid", role: "group" });
  private readonly canvas = el("canvas", { "aria-hidden": "true" });
  private readonly title = el("h3");
  private readonly summary = el("p", { class: "summary" });
  private readonly buttons = new Map<string, HTMLButtonElement>();
  private placed: Placed[] = [];
  private side = SMALLEST;
  private width = 0;
  private shown: Shown | null = null;

  constructor(private readonly choose: (head: string) => void) {
    this.element = el("section", { class: "panel" }, this.title, this.summary, this.grid);
    this.grid.append(this.canvas);
    this.grid.addEventListener("pointermove", (event) => this.hover(event));
    this.grid.addEventListener("pointerleave", hideTip);
    this.grid.addEventListener("keydown", (event) => this.walk(event));
    onResize(this.grid, (width) => {
      this.width = width;
      this.draw();
    });
  }

  update(shown: Shown): void {
    this.shown = shown;
    this.title.textContent = shown.title;
    this.summary.textContent = shown.heads.length ? shown.summary : shown.empty;
    this.grid.setAttribute("aria-label", `Heads of ${shown.title}; arrow keys move, Enter enlarges`);
    this.draw();
  }

  private draw(): void {
    const { shown, grid, canvas } = this;
    this.width ||= grid.clientWidth; // asked for once: while sliding, nothing is measured
    const width = isPrinting() ? Math.min(this.width, PAPER) : this.width;
    if (!shown || !width) return;
    const columns = this.layOut(shown.heads, width);
    const height = Math.ceil(shown.heads.length / columns) * (this.side + LABEL + GAP);
    grid.style.height = `${height}px`;
    const dots = devicePixelRatio || 1;
    canvas.width = Math.round(width * dots);
    canvas.height = Math.round(height * dots);
    canvas.style.width = `${width}px`;
    const context = canvas.getContext("2d")!;
    context.imageSmoothingEnabled = false;
    const [frame, lit] = [colour("line"), colour("mark")];
    const at = (value: number) => Math.round(value * dots);
    for (const { layer, head, name, x, y } of this.placed) {
      const side = at(this.side);
      context.drawImage(painted(shown.maps, layer, head, side), at(x), at(y + LABEL), side, side);
      context.lineWidth = name === shown.lit ? 3 * dots : dots;
      context.strokeStyle = name === shown.lit ? lit : frame;
      const half = name === shown.lit ? 1.5 * dots : 0.5 * dots;
      context.strokeRect(at(x) + half, at(y + LABEL) + half, side - 2 * half, side - 2 * half);
    }
    this.placeButtons(shown);
  }

  /** The largest maps that leave the panel about as high as it is wide. */
  private layOut(heads: string[], width: number): number {
    const tall = Math.min(640 * zoom(), Math.max(300, width));
    const most = Math.max(1, Math.floor((width + GAP) / (SMALLEST + GAP)));
    const largest = LARGEST * zoom();
    const sideOf = (columns: number) => Math.floor(Math.min(largest, (width + GAP) / columns - GAP));
    let columns = Math.min(most, Math.max(1, Math.floor((width + GAP) / (largest + GAP))));
    while (columns < most && Math.ceil(heads.length / columns) * (sideOf(columns) + LABEL + GAP) > tall) columns++;
    this.side = Math.max(SMALLEST, sideOf(columns));
    this.placed = heads.flatMap((name, i) => {
      const head = parseHead(name);
      const [row, column] = [Math.floor(i / columns), i % columns];
      return head ? [{ ...head, name, x: column * (this.side + GAP), y: row * (this.side + LABEL + GAP) }] : [];
    });
    return columns;
  }

  private placeButtons(shown: Shown): void {
    const wanted = new Set(shown.heads);
    for (const [name, button] of this.buttons)
      if (button.hidden === wanted.has(name)) button.hidden = !wanted.has(name);
    const reachable = wanted.has(shown.lit) ? shown.lit : shown.heads[0];
    let before: Element = this.canvas;
    for (const { layer, head, name, x, y } of this.placed) {
      const button = this.button(name);
      const share = shown.share(name);
      const said = [shown.types[layer]?.[head], share === undefined ? null : `importance ${percent(share, 1)}`].filter(
        Boolean,
      );
      set(button, "aria-label", `${name}, ${said.join(", ")}`);
      set(button, "aria-pressed", String(name === shown.lit));
      set(button, "tabindex", name === reachable ? "0" : "-1");
      button.style.transform = `translate(${x}px, ${y}px)`;
      button.style.width = `${this.side}px`;
      button.style.height = `${this.side + LABEL}px`;
      if (before.nextSibling !== button) before.after(button); // the order of reading is that of the maps
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

  /** Put the keyboard on a head, if it is shown. */
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
    const found = this.placed.find((each) => inside(each.x, x) && inside(each.y + LABEL, y));
    if (!found || !this.shown) return hideTip();
    const { maps, tokens, types } = this.shown;
    const cell = this.side / maps.length;
    const [query, key] = [Math.floor((y - found.y - LABEL) / cell), Math.floor((x - found.x) / cell)];
    const type = types[found.layer]?.[found.head] ?? "";
    showTip(
      event.clientX,
      event.clientY,
      ...cellLines(found.name, type, tokens, query, key, maps.weight(found.layer, found.head, query, key)),
    );
  }

  private walk(event: KeyboardEvent): void {
    const now = this.placed.findIndex((each) => this.buttons.get(each.name) === document.activeElement);
    const columns = this.placed.filter((each) => each.y === 0).length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (now < 0 || !step) return;
    event.preventDefault();
    const next = this.placed[Math.min(Math.max(0, now + step), this.placed.length - 1)]!;
    for (const [name, button] of this.buttons) button.tabIndex = name === next.name ? 0 : -1;
    this.buttons.get(next.name)!.focus();
  }

  /** The panel for a picture to keep, with its left top corner at a place. */
  picture(left: number): { drawn: SVGGElement; width: number; height: number } {
    const drawn = svg("g", { transform: `translate(${left}, 8)`, "font-family": "sans-serif" });
    const text = { fill: colour("ink"), "font-size": 14, "font-weight": "bold" };
    drawn.append(
      svg("text", { x: 0, y: 16, ...text }, this.shown?.title ?? ""),
      svg("text", { x: 0, y: 34, fill: colour("quiet"), "font-size": 11 }, this.summary.textContent),
    );
    for (const { layer, head, name, x, y } of this.placed) {
      const top = y + LABEL + 44;
      const lit = name === this.shown?.lit;
      drawn.append(
        svg("text", { x, y: top - 4, fill: colour("ink"), "font-size": 10 }, name),
        mapImage(this.shown!.maps, layer, head, x, top, this.side),
        svg("rect", {
          x,
          y: top,
          width: this.side,
          height: this.side,
          fill: "none",
          stroke: colour(lit ? "mark" : "line"),
          "stroke-width": lit ? 2 : 1,
        }),
      );
    }
    return { drawn, width: this.grid.clientWidth, height: 60 + parseFloat(this.grid.style.height || "0") };
  }
}

/** Only what changes is written: most buttons stay as they are while a slider moves. */
function set(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function cellLines(
  name: string,
  type: string,
  tokens: string[],
  query: number,
  key: number,
  weight: number,
): HTMLElement[] {
  const line = el("div", {}, el("b", {}, name), type ? ` ${type}` : "");
  if (key > query) return [line, el("div", { class: "quiet" }, "a query sees no later key")];
  const list = el("dl", {});
  replace(
    list,
    el("dt", {}, "query"),
    el("dd", {}, `${query + 1} ${quoted(tokens[query])}`),
    el("dt", {}, "key"),
    el("dd", {}, `${key + 1} ${quoted(tokens[key])}`),
    el("dt", {}, "weight"),
    el("dd", {}, weight ? weight.toFixed(3) : "0, closed"),
  );
  return [line, list];
}
