// The lower half of the diagram: the prompt's words numbered from 1, the clusters that respond to them, the output.
import type { Trace } from "./data";
import { svg } from "./dom";
import { chooseBoxes, shareOfKey, spread, type Box } from "./trace-boxes";
import { percent, visible } from "./words";

const APART = 10;
const OUTPUT = 40;
const ARROW = 54;
const BOX = 40;
const LINES = 40;
const pen = document.createElement("canvas").getContext("2d")!;

export function textWidth(text: string, size: number, bold = false): number {
  pen.font = `${bold ? "600 " : ""}${size}px system-ui, sans-serif`;
  return pen.measureText(text).width;
}

export interface WordsPicture {
  drawn: SVGGElement;
  height: number;
}

export function drawWords(trace: Trace, key: number, room: number, pickKey: (key: number) => void): WordsPicture {
  const drawn = svg("g", {});
  const words = placeWords(trace, key, room);
  const boxes = chooseBoxes(trace, key)
    .map((box) => ({ box, centre: centreOf(box, words.centres) }))
    .sort((a, b) => a.centre - b.centre);
  const wanted = boxes.map(({ box }) =>
    Math.max(54, ...box.lines.map((text, i) => textWidth(text, i ? 11 : 12.5, !i) + 18)),
  );
  const spare = room - APART * (boxes.length - 1);
  let limit = Math.max(30, ...wanted);
  while (limit > 30 && wanted.reduce((sum, wide) => sum + Math.min(wide, limit), 0) > spare) limit--;
  const widths = wanted.map((wide) => Math.min(wide, limit));
  const lefts = spread(
    boxes.map(({ centre }) => centre),
    widths,
    boxes.map(({ box }) => (box.ofKey ? 50 : 1)),
    room,
    APART,
  );
  const [boxTop, lineTop] = [OUTPUT + ARROW, OUTPUT + ARROW + BOX];
  const wordTop = lineTop + LINES;
  boxes.forEach(({ box }, i) => {
    const [left, wide] = [lefts[i]!, widths[i]!];
    for (const word of box.words) {
      const from = words.centres.get(word);
      if (from === undefined) continue;
      const to = box.lines.length ? Math.min(Math.max(from, left + 8), left + wide - 8) : left + wide / 2;
      const end = box.lines.length ? lineTop : boxTop;
      drawn.append(
        svg("path", {
          class: box.ofKey && word === key ? "wordline key" : "wordline",
          d: `M${from} ${wordTop}C${from} ${wordTop - LINES / 2} ${to} ${wordTop - LINES / 2} ${to} ${lineTop}V${end}`,
        }),
      );
    }
  });
  drawOutput(
    drawn,
    trace,
    key,
    boxes.map(({ box }, i) => ({ box, x: lefts[i]! + widths[i]! / 2 })),
    room,
    boxTop,
  );
  boxes.forEach(
    ({ box }, i) =>
      box.lines.length &&
      drawn.append(drawBox(lefts[i]!, boxTop, widths[i]!, box.lines, box.ofKey ? "box key" : "box")),
  );
  trace.tokens.forEach((token, place) => {
    const x = words.centres.get(place);
    if (x === undefined) return;
    const label = visible(token, 14);
    const look = place === key ? "token key" : "token";
    const group = words.turned
      ? svg(
          "g",
          { class: look },
          svg("text", { transform: `translate(${x + 4}, ${wordTop + words.long}) rotate(-90)` }, label),
          svg("text", { class: "number", x, y: wordTop + words.long + 14, "text-anchor": "middle" }, `${place + 1}`),
        )
      : svg(
          "g",
          { class: look },
          svg("text", { x, y: wordTop + 16, "text-anchor": "middle" }, label),
          svg("text", { class: "number", x, y: wordTop + 32, "text-anchor": "middle" }, `${place + 1}`),
        );
    if (place < trace.tokens.length - 1) group.addEventListener("click", () => pickKey(place));
    drawn.append(group);
  });
  return { drawn, height: wordTop + (words.turned ? words.long + 20 : 40) };
}

function drawOutput(
  drawn: SVGGElement,
  trace: Trace,
  key: number,
  boxes: { box: Box; x: number }[],
  room: number,
  boxTop: number,
): void {
  const [text, probability] = trace.logits.reduce(
    (best, each) => (each[1] > best[1] ? each : best),
    trace.logits[0] ?? ["", 0],
  );
  const more = trace.logits.length > 1 ? `, ${trace.logits.length - 1} more` : "";
  const lines = [visible(text, 20), `output, ${percent(probability)}${more}`];
  const wide = Math.max(...lines.map((each, i) => textWidth(each, i ? 11 : 12.5, !i))) + 24;
  const begin = boxes.find(({ box }) => box.ofKey)?.x ?? room / 2;
  const left = Math.min(Math.max(0, begin - wide / 2), room - wide);
  for (const { box, x } of boxes) {
    if (box.ofKey || box.direct < 0.01) continue;
    const above = x >= left && x <= left + wide;
    const side = x < left ? left - 5 : left + wide + 5;
    drawn.append(
      svg("path", {
        class: "wordline",
        d: `M${x} ${boxTop}V${above ? OUTPUT + 5 : OUTPUT / 2}${above ? "" : `H${side}`}`,
      }),
      head(above ? x : side, above ? OUTPUT : OUTPUT / 2, above ? "up" : x < left ? "right" : "left", "arrowhead"),
    );
  }
  const said = `modulated at ${percent(shareOfKey(trace, key))} by`;
  const half = textWidth(said, 12) / 2;
  drawn.append(
    svg("path", {
      class: "wordline key",
      d: `M${begin} ${boxTop}V${OUTPUT + 40}M${begin} ${OUTPUT + 20}V${OUTPUT + 5}`,
    }),
    head(begin, OUTPUT, "up", "arrowhead key"),
    svg(
      "text",
      { class: "measured", x: Math.min(Math.max(begin, half), room - half), y: OUTPUT + 34, "text-anchor": "middle" },
      said,
    ),
    drawBox(left, 0, wide, lines, "box output"),
  );
}

function head(x: number, y: number, way: "up" | "left" | "right", look: string): SVGElement {
  const points = {
    up: `${x},${y} ${x - 4},${y + 8} ${x + 4},${y + 8}`,
    right: `${x + 5},${y} ${x - 3},${y - 4} ${x - 3},${y + 4}`,
    left: `${x - 5},${y} ${x + 3},${y - 4} ${x + 3},${y + 4}`,
  };
  return svg("polygon", { class: look, points: points[way] });
}

function drawBox(x: number, y: number, wide: number, lines: string[], look: string): SVGElement {
  const fit = (text: string, size: number, bold: boolean): string => {
    let cut = text;
    for (let n = 24; n > 1 && textWidth(cut, size, bold) > wide - 8; n--) cut = visible(text, n);
    return cut;
  };
  return svg(
    "g",
    { class: look },
    svg("rect", { x, y, width: wide, height: 40, rx: 6 }),
    svg(
      "text",
      { class: "word", x: x + wide / 2, y: y + 17, "text-anchor": "middle" },
      fit(lines[0] ?? "", 12.5, true),
    ),
    svg(
      "text",
      { class: "layers", x: x + wide / 2, y: y + 32, "text-anchor": "middle" },
      fit(lines[1] ?? "", 11, false),
    ),
  );
}

/** Side by side like a sentence, or else upright, one to a column; of a long prompt, where most began. */
function placeWords(
  trace: Trace,
  key: number,
  room: number,
): { centres: Map<number, number>; turned: boolean; long: number } {
  const last = trace.tokens.length - 1;
  const kept = (place: number) => (place === key || place === last ? 1 : 0);
  const shown = trace.tokens
    .map((_, i) => i)
    .sort((a, b) => kept(b) - kept(a) || (trace.origins[b] ?? 0) - (trace.origins[a] ?? 0))
    .slice(0, Math.floor(room / 15))
    .sort((a, b) => a - b);
  const widths = shown.map((place) => Math.max(14, textWidth(visible(trace.tokens[place], 14), 14, place === key)));
  const total = widths.reduce((a, b) => a + b, 0);
  const gap = Math.min(34, (room - total) / Math.max(1, shown.length - 1));
  const centres = new Map<number, number>();
  if (gap >= 9 && shown.length === trace.tokens.length) {
    let x = (room - total - gap * (shown.length - 1)) / 2;
    shown.forEach((place, i) => (centres.set(place, x + widths[i]! / 2), (x += widths[i]! + gap)));
    return { centres, turned: false, long: 0 };
  }
  const column = Math.min(22, room / shown.length);
  shown.forEach((place, i) => centres.set(place, (room - column * shown.length) / 2 + column * (i + 0.5)));
  return { centres, turned: true, long: Math.max(...widths) + 4 };
}

function centreOf(box: Box, centres: Map<number, number>): number {
  const near = [...new Set([...box.words, ...box.stands])].flatMap((place) => centres.get(place) ?? []);
  return near.length ? near.reduce((a, b) => a + b, 0) / near.length : Math.max(0, ...centres.values());
}
