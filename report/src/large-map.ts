// One head, large: tokens on both axes, every cell to be read with the pointer or the arrow keys.
import { colour } from "./colour";
import { el, onResize, zoom } from "./dom";
import { headName, type Head, type Maps } from "./maps";
import { cellLines } from "./map-panel";
import { painted } from "./paint";
import { hideTip, say, showTip } from "./tip";
import { quoted, visible } from "./words";

export class LargeMap {
  readonly element: HTMLElement;
  private readonly canvas = el("canvas", { "aria-hidden": "true" });
  private maps: Maps | null = null;
  private tokens: string[] = [];
  private at: Head = { layer: 0, head: 0 };
  private cell: [number, number] = [0, 0]; // query, key
  private frame = { left: 0, top: 0, side: 0 };
  private query = 0;
  private type = "";

  constructor(private readonly look: (query: number, keep: boolean) => void) {
    this.element = el(
      "div",
      { class: "largemap", role: "application", "aria-roledescription": "attention map", tabindex: 0 },
      this.canvas,
    );
    this.element.addEventListener("pointermove", (event) => this.hover(event));
    this.element.addEventListener("pointerleave", hideTip);
    this.element.addEventListener("blur", hideTip);
    this.element.addEventListener("click", (event) => {
      const cell = this.under(event);
      if (cell) this.look(cell[0], true);
    });
    this.element.addEventListener("keydown", (event) => this.walk(event));
    onResize(this.element, () => this.draw());
  }

  update(maps: Maps, tokens: string[], at: Head, query: number, type: string, model: string): void {
    [this.maps, this.tokens, this.at, this.query, this.type] = [maps, tokens, at, query, type];
    this.cell = [Math.min(query, maps.length - 1), Math.min(this.cell[1], query)];
    this.element.setAttribute(
      "aria-label",
      `${headName(at)} of ${model}, query by key. Arrow keys read the cells, Enter keeps a query.`,
    );
    this.draw();
  }

  draw(): void {
    const { maps, canvas, tokens } = this;
    const width = this.element.clientWidth;
    if (!maps || !width) return;
    const dots = devicePixelRatio || 1;
    const context = canvas.getContext("2d")!;
    const most = Math.min(11 * zoom(), Math.max(8, (width - 80) / maps.length));
    const font = `${most}px system-ui, sans-serif`;
    context.font = font;
    const labels = tokens.map((token) => visible(token, 12));
    const room = Math.ceil(Math.max(14, ...labels.map((label) => context.measureText(label).width))) + 6;
    const side = Math.min(width - room - 2, 620 * zoom());
    this.frame = { left: room, top: room, side };
    canvas.width = Math.round(width * dots);
    canvas.height = Math.round((side + room + 2) * dots);
    canvas.style.height = `${side + room + 2}px`;
    context.setTransform(dots, 0, 0, dots, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(painted(maps, this.at.layer, this.at.head, side * dots), room, room, side, side);
    context.strokeStyle = colour("line");
    context.strokeRect(room - 0.5, room - 0.5, side + 1, side + 1);
    const cell = side / maps.length;
    context.strokeStyle = colour("mark");
    context.lineWidth = 1.5;
    context.strokeRect(room, room + this.query * cell, (this.query + 1) * cell, cell);
    context.font = font;
    context.textBaseline = "middle";
    const every = Math.ceil((most + 1) / cell); // labels that would lie on each other are left out
    labels.forEach((label, i) => {
      if (i % every && i !== this.query) return;
      if (i !== this.query && every > 1 && Math.abs(i - this.query) < every) return;
      context.fillStyle = i === this.query ? colour("mark") : colour("quiet");
      context.textAlign = "right";
      context.fillText(label, room - 4, room + (i + 0.5) * cell);
      context.save();
      context.translate(room + (i + 0.5) * cell, room - 4);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(label, 0, 0);
      context.restore();
    });
  }

  private under(event: MouseEvent): [number, number] | null {
    const box = this.canvas.getBoundingClientRect();
    const { left, top, side } = this.frame;
    const cell = side / (this.maps?.length ?? 1);
    const [query, key] = [
      Math.floor((event.clientY - box.top - top) / cell),
      Math.floor((event.clientX - box.left - left) / cell),
    ];
    const length = this.maps?.length ?? 0;
    return query >= 0 && query < length && key >= 0 && key < length ? [query, key] : null;
  }

  private hover(event: PointerEvent): void {
    const cell = this.under(event);
    if (!cell || !this.maps) return hideTip();
    this.cell = cell;
    showTip(event.clientX, event.clientY, ...this.lines());
    this.look(cell[0], false);
  }

  private lines(): HTMLElement[] {
    const [query, key] = this.cell;
    return cellLines(
      headName(this.at),
      this.type,
      this.tokens,
      query,
      key,
      this.maps!.weight(this.at.layer, this.at.head, query, key),
    );
  }

  private walk(event: KeyboardEvent): void {
    const step = ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] } as const)[
      event.key as "ArrowUp"
    ];
    if (!this.maps) return;
    if (event.key === "Enter") return this.look(this.cell[0], true);
    if (!step) return;
    event.preventDefault();
    const last = this.maps.length - 1;
    const query = Math.min(Math.max(0, this.cell[0] + step[0]), last);
    this.cell = [query, Math.min(Math.max(0, this.cell[1] + step[1]), query)];
    const weight = this.maps.weight(this.at.layer, this.at.head, ...this.cell);
    const box = this.canvas.getBoundingClientRect();
    const cell = this.frame.side / this.maps.length;
    showTip(box.left + this.frame.left + this.cell[1] * cell, box.top + this.frame.top + query * cell, ...this.lines());
    say(
      `query ${query + 1} ${quoted(this.tokens[query])}, key ${this.cell[1] + 1} ${quoted(this.tokens[this.cell[1]])}, weight ${weight.toFixed(2)}`,
    );
    this.look(query, false);
  }
}
