// The attribution diagram: attention maps of the heads that carry a key to the last query, and below them the prompt, its
// clusters and the output; beside it, if there are two models, the dense model's heads.
import type { Trace } from "../data";
import { AttentionMaps, headName } from "../maps/attention-maps";
import { mapImage } from "../maps/map-image";
import { svg, zoom } from "../ui/dom";
import { percent } from "../ui/format";
import { onPress, rovingTabindex, type FocusTarget } from "../ui/keyboard";
import { tooltipOn } from "../ui/tooltip";
import { carryingHeads, sentence, type CarryingHead, type CarryingHeads } from "./carrying-heads";
import { drawPrompt, textWidth } from "./diagram-prompt";

const PAD = 16;
const HEADER = 54;
const FOOTER = 34;
const GAP = 14;
const MAX_MAPS = 60; // in one panel
const MAX_NAMED = 16; // maps of the dense model that have a name above and a share below

export interface DiagramOptions {
  traces: Trace[];
  titles: string[];
  key: number;
  share: number;
  width: number;
  selected: string;
  selectHead: (head: string, side: number) => void;
  selectKey: (key: number) => void;
}

interface Panel {
  group: SVGGElement;
  height: number;
  title: string;
  movePrompt: (by: number) => void;
}

export function traceDiagram(options: DiagramOptions): SVGSVGElement {
  const { traces, key, share, width } = options;
  const last = traces.length - 1;
  const carrying = traces.map((trace) => carryingHeads(trace, key, share));
  const stacked = width < 720 || last === 0;
  const denseWidth = stacked ? width : carrying[0]!.heads.length > MAX_NAMED ? 290 : 220;
  const mainWidth = stacked ? width : width - denseWidth - GAP;
  const main = drawPanel(options, last, carrying[last]!, mainWidth, false);
  const panels = last > 0 ? [drawPanel(options, 0, carrying[0]!, denseWidth, true), main] : [main];
  const tallest = Math.max(...panels.map((panel) => panel.height));
  if (!stacked) main.movePrompt(tallest - main.height);
  const heights = panels.map((panel) => (stacked ? panel.height : tallest));
  const height = stacked ? heights.reduce((a, b) => a + b + GAP, -GAP) : tallest;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height + 2}`,
    width: width * zoom(),
    height: (height + 2) * zoom(),
    class: "diagram",
    role: "group",
    "aria-label": `Attribution diagram. ${sentence(carrying[last]!)}`,
  });
  let top = 0;
  panels.forEach((panel, i) => {
    const beside = !stacked && i > 0;
    const panelWidth = panel === main ? mainWidth : denseWidth;
    picture.append(framed(panel, beside ? denseWidth + GAP : 0, top, panelWidth, heights[i]!));
    if (stacked) top += heights[i]! + GAP;
  });
  return picture;
}

const framed = ({ group, title }: Panel, x: number, y: number, width: number, height: number): SVGElement =>
  svg(
    "g",
    { transform: `translate(${x}, ${y + 1})` },
    svg("rect", { class: "frame", x: 1, y: 0, width: width - 2, height, rx: 10 }),
    group,
    svg("text", { class: "name", x: width / 2, y: height - 12, "text-anchor": "middle" }, title),
  );

function drawPanel(options: DiagramOptions, side: number, carrying: CarryingHeads, width: number, dense: boolean): Panel {
  const inner = width - 2 * PAD;
  const group = svg("g", {}, ...heading(carrying, width, dense));
  const maps = drawMaps(options, side, carrying, inner, dense);
  maps.group.setAttribute("transform", `translate(${PAD}, ${HEADER})`);
  group.append(maps.group);
  const height = HEADER + maps.height;
  const carried = carrying.heads.reduce((sum, { share }) => sum + share, 0);
  const prompt = dense ? null : drawPrompt(options.traces[side]!, options.key, carried, inner, options.selectKey);
  const movePrompt = (by: number) =>
    prompt?.group.setAttribute("transform", `translate(${PAD}, ${height + 18 + by})`);
  if (prompt) group.append(prompt.group);
  movePrompt(0);
  return {
    group,
    movePrompt,
    height: height + (prompt ? 18 + prompt.height : 0) + FOOTER,
    title: options.titles[side]!,
  };
}

/** How many heads carry the share, and how many of them map the key to the query. */
function heading(carrying: CarryingHeads, width: number, dense: boolean): SVGElement[] {
  const { heads, total, share, key, query } = carrying;
  const count = `${heads.length} of ${total} heads ${heads.length === 1 ? "carries" : "carry"} ${percent(share)}`;
  const text = dense ? count : sentence(carrying);
  const below = dense ? `from key pos ${key + 1} to query pos ${query + 1}` : `${count} of it`;
  const size = Math.min(15, (15 * (width - 2 * PAD)) / textWidth(text, 15, true));
  const allMap = heads.length > 0 && heads.every((head) => head.mapsKey);
  const style = !dense && allMap ? "statement all" : "statement";
  return [
    svg("text", { class: style, x: width / 2, y: 26, "text-anchor": "middle", "font-size": size }, text),
    svg("text", { class: "under", x: width / 2, y: 44, "text-anchor": "middle" }, below),
  ];
}

interface Grid {
  side: number; // of a map
  named: boolean;
  height: number;
  corner: (i: number) => [number, number];
}

function layOutMaps(count: number, room: number, dense: boolean): Grid {
  const named = !dense || count <= MAX_NAMED;
  const gap = named ? 14 : 6;
  const maxSide = named ? (dense ? 84 : count <= 3 ? 150 : 104) : 54;
  const minColumns = dense && count > MAX_NAMED ? 5 : 2;
  const columns = Math.max(1, Math.min(count, Math.max(minColumns, Math.floor((room + gap) / (maxSide + gap)))));
  const side = Math.min(maxSide, (room + gap) / columns - gap);
  const [above, below] = named ? [16, 18] : [0, 0];
  const left = (room - columns * (side + gap) + gap) / 2;
  const row = side + gap + above + below;
  return {
    side,
    named,
    height: Math.max(0, Math.ceil(count / columns) * row - gap) + 6,
    corner: (i) => [left + (i % columns) * (side + gap), Math.floor(i / columns) * row + above],
  };
}

function drawMaps(options: DiagramOptions, side: number, carrying: CarryingHeads, room: number, dense: boolean) {
  const { selected, selectHead, traces } = options;
  const group = svg("g", {});
  const heads = carrying.heads.slice(0, MAX_MAPS);
  const grid = layOutMaps(heads.length, room, dense);
  const maps = AttentionMaps.of(traces[side]!.maps);
  const targets: FocusTarget[] = [];
  heads.forEach((head, i) => {
    const [x, y] = grid.corner(i);
    const name = headName(head);
    const element = drawHead(maps, head, carrying, { x, y, side: grid.side }, name === selected);
    if (grid.named) group.append(...mapLabels(head, x + grid.side / 2, y, grid.side));
    onPress(element, () => selectHead(name, side));
    targets.push({ element, x, y });
    group.append(element);
  });
  rovingTabindex(targets, targets.find(({ element }) => element.classList.contains("selected"))?.element);
  return { group, height: grid.height };
}

/** Name above and share below a map; outside the button, whose label says the same. */
const mapLabels = (head: CarryingHead, x: number, y: number, side: number): SVGElement[] => [
  svg("text", { class: "label", x, y: y - 5, "text-anchor": "middle" }, `L${head.layer}-H${head.head}`),
  svg("text", { class: "part", x, y: y + side + 14, "text-anchor": "middle" }, percent(head.share)),
];

/** A head's map, with the cell of the key and the query marked: filled if the query attends to this key most. */
function drawHead(
  maps: AttentionMaps,
  head: CarryingHead,
  { key, query }: CarryingHeads,
  box: { x: number; y: number; side: number },
  selected: boolean,
): SVGGElement {
  const { x, y, side } = box;
  const name = headName(head);
  const cell = side / maps.length;
  const mark = Math.max(cell, Math.min(5, side / 8)); // large enough to be seen
  const markAt = (position: number) => Math.min(Math.max((position + 0.5) * cell - mark / 2, 0), side - mark);
  const attends = head.mapsKey ? ", attends most to this key" : "";
  const element = svg(
    "g",
    {
      class: selected ? "carrier selected" : "carrier",
      role: "button",
      "aria-pressed": String(selected),
      "aria-label": `${name} carries ${percent(head.share)}${attends}`,
    },
    mapImage(maps, head.layer, head.head, box),
    svg("rect", { class: "border", x, y, width: side, height: side }),
    svg("rect", {
      class: head.mapsKey ? "markcell filled" : "markcell",
      x: x + markAt(key),
      y: y + markAt(query),
      width: mark,
      height: mark,
    }),
  );
  tooltipOn(element, `${name}: ${percent(head.share)}${attends}`);
  return element;
}
