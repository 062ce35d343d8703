// One head's attention map with tokens on both axes; pointer and arrow keys read its cells.
import { colour } from "../ui/colour";
import { el, onResize, zoom } from "../ui/dom";
import { headName, type Head, type AttentionMaps } from "./attention-maps";
import { cellTooltip } from "./map-panel";
import { mapCanvas } from "./map-image";
import { hideTooltip, announce, showTooltip } from "../ui/tooltip";
import { quoted, visible } from "../ui/format";

export class LargeMap {
  readonly element: HTMLElement;
  private readonly canvas = el("canvas", { "aria-hidden": "true" });
  private maps: AttentionMaps | null = null;
  private tokens: string[] = [];
  private at: Head = { layer: 0, head: 0 };
  private cell: [number, number] = [0, 0]; // query, key
  private frame = { left: 0, top: 0, side: 0 };
  private query = 0;
  private type = "";

  constructor(private readonly onQuery: (query: number, select: boolean) => void) {
    this.element = el(
      "div",
      { class: "largemap", role: "application", "aria-roledescription": "attention map", tabindex: 0 },
      this.canvas,
    );
    this.element.addEventListener("pointermove", (event) => this.hover(event));
    this.element.addEventListener("pointerleave", hideTooltip);
    this.element.addEventListener("blur", hideTooltip);
    this.element.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) this.onQuery(cell[0], true);
    });
    this.element.addEventListener("keydown", (event) => this.moveCell(event));
    onResize(this.element, () => this.draw());
  }

  update(maps: AttentionMaps, tokens: string[], at: Head, query: number, type: string, model: string): void {
    [this.maps, this.tokens, this.at, this.query, this.type] = [maps, tokens, at, query, type];
    this.cell = [Math.min(query, maps.length - 1), Math.min(this.cell[1], query)];
    this.element.setAttribute(
      "aria-label",
      `${headName(at)} of ${model}, query by key. Arrow keys read the cells, Enter selects a query.`,
    );
    this.draw();
  }

  /** Frame the row of a query. */
  showQuery(query: number): void {
    if (query === this.query) return;
    this.query = query;
    this.draw();
  }

  draw(): void {
    const { maps, canvas } = this;
    const width = this.element.clientWidth;
    if (!maps || !width) return;
    const pixelRatio = devicePixelRatio || 1;
    const context = canvas.getContext("2d")!;
    const fontSize = Math.min(11 * zoom(), Math.max(8, (width - 80) / maps.length));
    context.font = `${fontSize}px system-ui, sans-serif`;
    const labels = this.tokens.map((token) => visible(token, 12));
    const margin = Math.ceil(Math.max(14, ...labels.map((label) => context.measureText(label).width))) + 6;
    const side = Math.min(width - margin - 2, 620 * zoom());
    this.frame = { left: margin, top: margin, side };
    canvas.width = Math.round(width * pixelRatio); // this resets the context, its font too
    canvas.height = Math.round((side + margin + 2) * pixelRatio);
    canvas.style.height = `${side + margin + 2}px`;
    context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(mapCanvas(maps, this.at.layer, this.at.head, side * pixelRatio), margin, margin, side, side);
    this.drawFrames(context, side / maps.length);
    context.font = `${fontSize}px system-ui, sans-serif`;
    this.drawLabels(context, labels, side / maps.length, fontSize);
  }

  private drawFrames(context: CanvasRenderingContext2D, cell: number): void {
    const { left, top, side } = this.frame;
    context.strokeStyle = colour("line");
    context.strokeRect(left - 0.5, top - 0.5, side + 1, side + 1);
    context.strokeStyle = colour("mark");
    context.lineWidth = 1.5;
    context.strokeRect(left, top + this.query * cell, (this.query + 1) * cell, cell);
  }

  /** Tokens at both axes, as many as fit without overlap; always the query's. */
  private drawLabels(context: CanvasRenderingContext2D, labels: string[], cell: number, fontSize: number): void {
    const { left, top } = this.frame;
    const stride = Math.ceil((fontSize + 1) / cell);
    context.textBaseline = "middle";
    labels.forEach((label, i) => {
      const isQuery = i === this.query;
      if (!isQuery && (i % stride || (stride > 1 && Math.abs(i - this.query) < stride))) return;
      context.fillStyle = colour(isQuery ? "mark" : "quiet");
      context.textAlign = "right";
      context.fillText(label, left - 4, top + (i + 0.5) * cell);
      context.save();
      context.translate(left + (i + 0.5) * cell, top - 4);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(label, 0, 0);
      context.restore();
    });
  }

  private cellAt(event: MouseEvent): [number, number] | null {
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
    const cell = this.cellAt(event);
    if (!cell || !this.maps) return hideTooltip();
    this.cell = cell;
    showTooltip(event.clientX, event.clientY, ...this.cellText());
    this.onQuery(cell[0], false);
  }

  private cellText(): HTMLElement[] {
    const [query, key] = this.cell;
    return cellTooltip(
      headName(this.at),
      this.type,
      this.tokens,
      query,
      key,
      this.maps!.weight(this.at.layer, this.at.head, query, key),
    );
  }

  private moveCell(event: KeyboardEvent): void {
    const step = ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] } as const)[
      event.key as "ArrowUp"
    ];
    if (!this.maps) return;
    if (event.key === "Enter") return this.onQuery(this.cell[0], true);
    if (!step) return;
    event.preventDefault();
    const last = this.maps.length - 1;
    const query = Math.min(Math.max(0, this.cell[0] + step[0]), last);
    this.cell = [query, Math.min(Math.max(0, this.cell[1] + step[1]), query)];
    const weight = this.maps.weight(this.at.layer, this.at.head, ...this.cell);
    const box = this.canvas.getBoundingClientRect();
    const cell = this.frame.side / this.maps.length;
    showTooltip(box.left + this.frame.left + this.cell[1] * cell, box.top + this.frame.top + query * cell, ...this.cellText());
    announce(
      `query ${query + 1} ${quoted(this.tokens[query])}, key ${this.cell[1] + 1} ${quoted(this.tokens[this.cell[1]])}, attention weight ${weight.toFixed(2)}`,
    );
    this.onQuery(query, false);
  }
}
