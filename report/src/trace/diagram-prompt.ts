// The lower half of the attribution diagram: the prompt's tokens numbered from 1, the clusters that respond to them, and
// the output.
import type { Trace } from "../data";
import { svg } from "../ui/dom";
import { percent, visible } from "../ui/format";
import { AttentionMaps } from "../maps/attention-maps";
import { chooseBoxes, spread, type ClusterBox } from "./diagram-clusters";

const GAP = 10;
const OUTPUT = 40; // heights, from top to bottom
const ARROW = 54;
const BOX = 40;
const LINES = 40;
const BOX_TOP = OUTPUT + ARROW;
const LINE_TOP = BOX_TOP + BOX;
const TOKEN_TOP = LINE_TOP + LINES;
const measure = document.createElement("canvas").getContext("2d")!;

export function textWidth(text: string, size: number, bold = false): number {
  measure.font = `${bold ? "600 " : ""}${size}px system-ui, sans-serif`;
  return measure.measureText(text).width;
}

interface PlacedBox {
  box: ClusterBox;
  left: number;
  width: number;
}

interface TokenLayout {
  centres: Map<number, number>; // of the tokens that are shown
  rotated: boolean;
  length: number; // of the longest label, if rotated
}

/** `carried` is the share of the flow from the key that the drawn heads carry. */
export function drawPrompt(
  trace: Trace,
  key: number,
  carried: number,
  room: number,
  selectKey: (key: number) => void,
) {
  const layout = layOutTokens(trace, key, room);
  const boxes = placeBoxes(trace, key, room, layout);
  const group = svg(
    "g",
    {},
    ...boxes.flatMap((placed) => tokenLines(placed, key, layout)),
    ...drawOutput(trace, carried, boxes, room),
    ...boxes.flatMap(({ box, left, width }) =>
      box.lines.length ? [drawBox(left, BOX_TOP, width, box.lines, box.ofKey ? "box key" : "box")] : [],
    ),
    ...drawTokens(trace, key, layout, selectKey),
  );
  return { group, height: TOKEN_TOP + (layout.rotated ? layout.length + 20 : 56) };
}

/** Boxes as near as possible to their tokens, narrower if they do not fit. */
function placeBoxes(trace: Trace, key: number, room: number, { centres }: TokenLayout): PlacedBox[] {
  const boxes = chooseBoxes(trace, key)
    .map((box) => ({ box, centre: centreOf(box, centres) }))
    .sort((a, b) => a.centre - b.centre);
  const wanted = boxes.map(({ box }) =>
    Math.max(54, ...box.lines.map((text, i) => textWidth(text, i ? 11 : 12.5, !i) + 18)),
  );
  const available = room - GAP * (boxes.length - 1);
  let limit = Math.max(30, ...wanted);
  while (limit > 30 && wanted.reduce((sum, width) => sum + Math.min(width, limit), 0) > available) limit--;
  const preferences = boxes.map(({ box, centre }, i) => ({
    centre,
    width: Math.min(wanted[i]!, limit),
    pull: box.ofKey ? 50 : 1,
  }));
  const lefts = spread(preferences, room, GAP);
  return boxes.map(({ box }, i) => ({ box, left: lefts[i]!, width: preferences[i]!.width }));
}

function centreOf(box: ClusterBox, centres: Map<number, number>): number {
  const [words, places] = [box.words, box.positions].map((list) => list.flatMap((at) => centres.get(at) ?? []));
  const near = words!.length ? words! : places!;
  return near.length ? near.reduce((a, b) => a + b, 0) / near.length : Math.max(0, ...centres.values());
}

/** Lines from the tokens that a cluster responds to. */
function tokenLines({ box, left, width }: PlacedBox, key: number, { centres }: TokenLayout): SVGElement[] {
  return box.words.flatMap((position) => {
    const from = centres.get(position);
    if (from === undefined) return [];
    const to = box.lines.length ? Math.min(Math.max(from, left + 8), left + width - 8) : left + width / 2;
    const end = box.lines.length ? LINE_TOP : BOX_TOP;
    const middle = TOKEN_TOP - LINES / 2;
    return svg("path", {
      class: box.ofKey && position === key ? "wordline key" : "wordline",
      d: `M${from} ${TOKEN_TOP}C${from} ${middle} ${to} ${middle} ${to} ${LINE_TOP}V${end}`,
    });
  });
}

function drawTokens(trace: Trace, key: number, layout: TokenLayout, selectKey: (key: number) => void): SVGElement[] {
  return trace.tokens.flatMap((token, position) => {
    const x = layout.centres.get(position);
    if (x === undefined) return [];
    const bottom = TOKEN_TOP + layout.length;
    const label = layout.rotated
      ? svg("text", { transform: `translate(${x + 4}, ${bottom}) rotate(-90)` }, visible(token, 14))
      : svg("text", { x, y: TOKEN_TOP + 16, "text-anchor": "middle" }, visible(token, 14));
    const y = layout.rotated ? bottom + 14 : TOKEN_TOP + 32;
    const number = svg("text", { class: "number", x, y, "text-anchor": "middle" }, `${position + 1}`);
    const share = layout.rotated
      ? null
      : svg("text", { class: "number", x, y: y + 15, "text-anchor": "middle" }, percent(trace.origins[position]));
    const group = svg("g", { class: position === key ? "token key" : "token" }, label, number, share);
    if (position < trace.tokens.length - 1) group.addEventListener("click", () => selectKey(position));
    return group;
  });
}

/** The output's box, with arrows from the clusters that act on it directly, and to the key's with the heads' share. */
function drawOutput(trace: Trace, carried: number, boxes: PlacedBox[], room: number): SVGElement[] {
  const [text, probability] = trace.logits.reduce(
    (best, logit) => (logit[1] > best[1] ? logit : best),
    trace.logits[0] ?? ["", 0],
  );
  const others = trace.logits.length > 1 ? `, ${trace.logits.length - 1} more` : "";
  const lines = [visible(text, 20), `layer ${AttentionMaps.of(trace.maps).layers}, ${percent(probability)}${others}`];
  const width = Math.max(...lines.map((line, i) => textWidth(line, i ? 11 : 12.5, !i))) + 24;
  const ofKey = boxes.find(({ box }) => box.ofKey);
  const start = ofKey ? ofKey.left + ofKey.width / 2 : room / 2;
  const left = Math.min(Math.max(0, start - width / 2), room - width);
  const direct = boxes.filter(({ box }) => !box.ofKey && box.direct >= 0.01);
  return [
    ...direct.flatMap((placed) => directArrow(placed.left + placed.width / 2, left, left + width)),
    ...keyArrow(start, `modulated at ${percent(carried)} by`, room),
    drawBox(left, 0, width, lines, "box output"),
  ];
}

/** From a cluster up to the output's box, or around to its side. */
function directArrow(x: number, left: number, right: number): SVGElement[] {
  const below = x >= left && x <= right;
  const side = x < left ? left - 5 : right + 5;
  return [
    svg("path", {
      class: "wordline",
      d: `M${x} ${BOX_TOP}V${below ? OUTPUT + 5 : OUTPUT / 2}${below ? "" : `H${side}`}`,
    }),
    below
      ? arrowhead(x, OUTPUT, "up", "arrowhead")
      : arrowhead(side, OUTPUT / 2, x < left ? "right" : "left", "arrowhead"),
  ];
}

function keyArrow(x: number, label: string, room: number): SVGElement[] {
  const half = textWidth(label, 12) / 2;
  const labelX = Math.min(Math.max(x, half), room - half);
  return [
    svg("path", { class: "wordline key", d: `M${x} ${OUTPUT}V${OUTPUT + 20}M${x} ${OUTPUT + 40}V${BOX_TOP - 5}` }),
    arrowhead(x, BOX_TOP, "down", "arrowhead key"),
    svg("text", { class: "measured", x: labelX, y: OUTPUT + 34, "text-anchor": "middle" }, label),
  ];
}

function arrowhead(x: number, y: number, direction: "up" | "down" | "left" | "right", style: string): SVGElement {
  const points = {
    up: `${x},${y} ${x - 4},${y + 8} ${x + 4},${y + 8}`,
    down: `${x},${y} ${x - 4},${y - 8} ${x + 4},${y - 8}`,
    right: `${x + 5},${y} ${x - 3},${y - 4} ${x - 3},${y + 4}`,
    left: `${x - 5},${y} ${x + 3},${y - 4} ${x + 3},${y + 4}`,
  };
  return svg("polygon", { class: style, points: points[direction] });
}

function drawBox(x: number, y: number, width: number, lines: string[], style: string): SVGElement {
  const fit = (text: string, size: number, bold: boolean): string => {
    let shortened = text;
    for (let n = 24; n > 1 && textWidth(shortened, size, bold) > width - 8; n--) shortened = visible(text, n);
    return shortened;
  };
  const centre = { x: x + width / 2, "text-anchor": "middle" };
  return svg(
    "g",
    { class: style },
    svg("rect", { x, y, width, height: 40, rx: 6 }),
    svg("text", { class: "word", ...centre, y: y + 17 }, fit(lines[0] ?? "", 12.5, true)),
    svg("text", { class: "layers", ...centre, y: y + 32 }, fit(lines[1] ?? "", 11, false)),
  );
}

/** Side by side like a sentence if they fit, else rotated; of a long prompt, the tokens to which most is attributed. */
function layOutTokens(trace: Trace, key: number, room: number): TokenLayout {
  const last = trace.tokens.length - 1;
  const required = (position: number) => (position === key || position === last ? 1 : 0);
  const shown = trace.tokens
    .map((_, i) => i)
    .sort((a, b) => required(b) - required(a) || (trace.origins[b] ?? 0) - (trace.origins[a] ?? 0))
    .slice(0, Math.floor(room / 15))
    .sort((a, b) => a - b);
  const widths = shown.map((position) =>
    Math.max(14, textWidth(visible(trace.tokens[position], 14), 14, position === key)),
  );
  const total = widths.reduce((a, b) => a + b, 0);
  const gap = Math.min(34, (room - total) / Math.max(1, shown.length - 1));
  const centres = new Map<number, number>();
  if (gap >= 9 && shown.length === trace.tokens.length) {
    let x = (room - total - gap * (shown.length - 1)) / 2;
    shown.forEach((position, i) => (centres.set(position, x + widths[i]! / 2), (x += widths[i]! + gap)));
    return { centres, rotated: false, length: 0 };
  }
  const column = Math.min(22, room / shown.length);
  shown.forEach((position, i) => centres.set(position, (room - column * shown.length) / 2 + column * (i + 0.5)));
  return { centres, rotated: true, length: Math.max(...widths) + 4 };
}
