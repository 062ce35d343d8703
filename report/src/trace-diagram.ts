// The attribution diagram, drawn again: the wall of the dense model's heads, the few of the twin, and what comes of them.
import { carrying, sentence, type Carrying } from "./carrying";
import type { Trace } from "./data";
import { svg, zoom } from "./dom";
import { headName, Maps } from "./maps";
import { mapImage } from "./paint";
import { press, rove, type Stop } from "./rove";
import { hideTip, showTip } from "./tip";
import { drawWords, textWidth } from "./trace-words";
import { percent } from "./words";

const PAD = 16;
const HEADER = 54;
const NAME = 34;
const MOST = 60;

export interface DiagramOptions {
  traces: Trace[];
  titles: string[];
  key: number;
  share: number;
  width: number;
  lit: string;
  choose: (head: string, side: number) => void;
  pickKey: (key: number) => void;
}

export function traceDiagram(options: DiagramOptions): SVGSVGElement {
  const { traces, key, share, width } = options;
  const last = traces.length - 1;
  const found = traces.map((trace) => carrying(trace, key, share));
  const stacked = width < 720 || last === 0;
  const beside = stacked ? width : found[0]!.heads.length > 16 ? 290 : 220;
  const room = stacked ? width : width - beside - 14;
  const main = drawPanel(options, last, found[last]!, room, false);
  const parts = [main];
  if (last > 0) parts.unshift(drawPanel(options, 0, found[0]!, beside, true));
  const tall = Math.max(...parts.map((part) => part.height));
  if (!stacked) main.lower(tall - main.height);
  const heights = parts.map((part) => (stacked ? part.height : tall));
  const height = stacked ? heights.reduce((a, b) => a + b + 14, -14) : tall;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height + 2}`,
    width: width * zoom(),
    height: (height + 2) * zoom(),
    class: "diagram",
    role: "group",
    "aria-label": `Attribution diagram. ${sentence(found[last]!)}`,
  });
  let top = 0;
  parts.forEach((part, i) => {
    const [x, wide] = stacked ? [0, width] : i === parts.length - 1 && i > 0 ? [beside + 14, room] : [0, beside];
    picture.append(
      svg(
        "g",
        { transform: `translate(${x}, ${top + 1})` },
        svg("rect", { class: "frame", x: 1, y: 0, width: wide - 2, height: heights[i]!, rx: 10 }),
        part.drawn,
        svg("text", { class: "name", x: wide / 2, y: heights[i]! - 12, "text-anchor": "middle" }, part.title),
      ),
    );
    if (stacked) top += heights[i]! + 14;
  });
  return picture;
}

function drawPanel(options: DiagramOptions, side: number, found: Carrying, wide: number, wall: boolean) {
  const trace = options.traces[side]!;
  const drawn = svg("g", {});
  const inner = wide - 2 * PAD;
  const all = found.heads.length > 0 && found.heads.every((each) => each.looks);
  const count = `${found.heads.length} of ${found.total} heads ${found.heads.length === 1 ? "carries" : "carry"} ${percent(found.share)}`;
  const said = wall ? count : sentence(found);
  const under = wall ? `from key pos ${found.key + 1} to query pos ${found.query + 1}` : `${count} of it`;
  const size = Math.min(15, (15 * inner) / textWidth(said, 15, true));
  drawn.append(
    svg(
      "text",
      { class: !wall && all ? "said all" : "said", x: wide / 2, y: 26, "text-anchor": "middle", "font-size": size },
      said,
    ),
    svg("text", { class: "under", x: wide / 2, y: 44, "text-anchor": "middle" }, under),
  );
  const maps = drawMaps(options, side, trace, found, inner, wall);
  maps.drawn.setAttribute("transform", `translate(${PAD}, ${HEADER})`);
  drawn.append(maps.drawn);
  const height = HEADER + maps.height;
  const words = wall ? null : drawWords(trace, options.key, inner, options.pickKey);
  const lower = (by: number) => words?.drawn.setAttribute("transform", `translate(${PAD}, ${height + 18 + by})`);
  if (words) drawn.append(words.drawn);
  lower(0);
  return { drawn, lower, height: height + (words ? 18 + words.height : 0) + NAME, title: options.titles[side]! };
}

function drawMaps(
  { lit, choose, key }: DiagramOptions,
  side: number,
  trace: Trace,
  found: Carrying,
  room: number,
  wall: boolean,
) {
  const drawn = svg("g", {});
  const shown = found.heads.slice(0, MOST);
  const named = !wall || shown.length <= 16;
  const gap = named ? 14 : 6;
  const most = named ? (wall ? 84 : 104) : 54;
  const fewest = wall && shown.length > 16 ? 5 : 2;
  const columns = Math.max(1, Math.min(shown.length, Math.max(fewest, Math.floor((room + gap) / (most + gap)))));
  const size = Math.min(most, (room + gap) / columns - gap);
  const [above, below] = named ? [16, 18] : [0, 0];
  const left = (room - columns * (size + gap) + gap) / 2;
  const maps = Maps.of(trace.maps);
  const cell = size / maps.length;
  const mark = Math.max(cell, Math.min(5, size / 8));
  const stops: Stop[] = [];
  shown.forEach((each, i) => {
    const [x, y] = [
      left + (i % columns) * (size + gap),
      Math.floor(i / columns) * (size + gap + above + below) + above,
    ];
    const name = headName(each);
    const spot = (at: number) => Math.min(Math.max((at + 0.5) * cell - mark / 2, 0), size - mark);
    const group = svg(
      "g",
      {
        class: name === lit ? "carrier lit" : "carrier",
        role: "button",
        "aria-pressed": String(name === lit),
        "aria-label": `${name} carries ${percent(each.part)}${each.looks ? ", looks there most" : ""}`,
      },
      mapImage(maps, each.layer, each.head, x, y, size),
      svg("rect", { class: "border", x, y, width: size, height: size }),
      svg("rect", {
        class: each.looks ? "markcell filled" : "markcell",
        x: x + spot(key),
        y: y + spot(found.query),
        width: mark,
        height: mark,
      }),
    );
    // beside the button, whose name says the same in words
    if (named)
      drawn.append(
        svg(
          "text",
          { class: "label", x: x + size / 2, y: y - 5, "text-anchor": "middle" },
          `L${each.layer}-H${each.head}`,
        ),
        svg("text", { class: "part", x: x + size / 2, y: y + size + 14, "text-anchor": "middle" }, percent(each.part)),
      );
    group.addEventListener("pointermove", (event) =>
      showTip(event.clientX, event.clientY, `${name}: ${percent(each.part)}${each.looks ? ", looks there most" : ""}`),
    );
    group.addEventListener("pointerleave", hideTip);
    press(group, () => choose(name, side));
    stops.push({ element: group, x, y });
    drawn.append(group);
  });
  rove(stops, stops.find((stop) => stop.element.classList.contains("lit"))?.element);
  const rows = Math.ceil(shown.length / columns);
  return { drawn, height: Math.max(0, rows * (size + gap + above + below) - gap) + 6 };
}
