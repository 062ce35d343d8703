// The graph of a trace: a column for each token, a row for each layer; nodes as large as their influence, links as their flow.
import type { Trace, TraceNode } from "./data";
import { svg, zoom } from "./dom";
import { Maps } from "./maps";
import { press, rove, type Stop } from "./rove";
import { hideTip, showTip } from "./tip";
import { nodeName, nodesById } from "./trace-names";
import { percent, visible } from "./words";

const SLOT = 22;

export interface GraphOptions {
  trace: Trace;
  width: number;
  links: number; // the strongest; those of a chosen node are always there
  pick: string;
  lit: string;
  title: string;
  choose: (pick: string) => void;
}

export function traceGraph({ trace, width, links, pick, lit, title, choose }: GraphOptions): SVGSVGElement {
  const layers = Maps.of(trace.maps).layers;
  const byId = nodesById(trace);
  const { places, row, whole, height, columns } = layOut(trace, layers, width);
  const picture = svg("svg", {
    viewBox: `0 0 ${whole} ${height}`,
    width: whole * zoom(),
    height: height * zoom(),
    class: "graph",
    role: "group",
    "aria-label": `Graph of ${title}; arrow keys move through its nodes, Enter chooses one`,
  });
  columns.forEach(({ left, wide }, position) => {
    if (position % 2) picture.append(svg("rect", { class: "lane", x: left, y: 6, width: wide, height: height - 12 }));
    picture.append(
      svg("text", { class: "tick", x: left + wide / 2, y: row(-1) + 24, "text-anchor": "middle" }, `${position + 1}`),
    );
  });
  for (let layer = 0; layer < layers; layer++)
    picture.append(svg("text", { class: "tick", x: 2, y: row(layer) + 4 }, `L${layer}`));
  const picked = /^(node|link|head):(.*)$/.exec(pick);
  const most = Math.max(1e-12, ...trace.links.map((link) => link.flow));
  const isOwn = (i: number): boolean => {
    const { source, target } = trace.links[i]!;
    return picked?.[1] === "link"
      ? picked[2] === String(i)
      : picked?.[1] === "node" && (picked[2] === source || picked[2] === target);
  };
  const order = trace.links
    .map((_, i) => i)
    .sort((a, b) => trace.links[b]!.flow - trace.links[a]!.flow)
    .filter((i, rank) => rank < links || isOwn(i))
    .reverse();
  for (const i of order) {
    const link = trace.links[i]!;
    const [from, to] = [byId.get(link.source), byId.get(link.target)];
    if (!from || !to) continue;
    const [{ x: x0, y: y0 }, { x: x1, y: y1 }] = [places.get(from.id)!, places.get(to.id)!];
    const d = `M${x0} ${y0}C${x0} ${(y0 + y1) / 2} ${x1} ${(y0 + y1) / 2} ${x1} ${y1}`;
    const carried = lit
      ? Math.abs(link.heads.find(([name]) => name === lit)?.[1] ?? 0) / Math.max(1e-12, Math.abs(link.weight))
      : 0;
    const own = isOwn(i);
    const faint = (picked?.[1] === "node" || picked?.[1] === "link") && !own;
    const line = svg(
      "g",
      {
        class: `link${link.weight < 0 ? " minus" : ""}${own ? " own" : ""}${faint ? " off" : ""}${carried > 0.2 ? " carried" : ""}`,
      },
      svg("path", { class: "line", d, "stroke-width": 0.6 + 7 * Math.sqrt(link.flow / most) }),
      svg("path", { d, class: "touch" }),
    );
    line.addEventListener("click", () => choose(`link:${i}`));
    line.addEventListener("pointermove", (event) =>
      showTip(
        event.clientX,
        event.clientY,
        `${nodeName(trace, from)} → ${nodeName(trace, to)}: ${percent(link.flow, 1)} of the output`,
      ),
    );
    line.addEventListener("pointerleave", hideTip);
    picture.append(line);
  }
  const stops: Stop[] = [];
  const largest = Math.max(1e-12, ...trace.nodes.filter((node) => node.kind !== "logit").map((node) => node.influence));
  for (const node of trace.nodes) {
    const { x: cx, y: cy } = places.get(node.id)!;
    const group = svg(
      "g",
      {
        class: `node ${kindOf(node)}${pick === `node:${node.id}` ? " own" : ""}`,
        role: "button",
        "aria-pressed": String(pick === `node:${node.id}`),
        "aria-label": `${nodeName(trace, node)}${node.label && node.kind === "feature" ? `, ${visible(node.label, 40)}` : ""}, influence ${percent(node.influence, 1)}`,
      },
      ...shape(trace, node, cx, cy, Math.sqrt(node.influence / largest)),
    );
    press(group, () => choose(pick === `node:${node.id}` ? "" : `node:${node.id}`));
    group.addEventListener("pointermove", (event) =>
      showTip(
        event.clientX,
        event.clientY,
        `${nodeName(trace, node)}: ${percent(node.influence, 1)} of the output comes through it`,
      ),
    );
    group.addEventListener("pointerleave", hideTip);
    stops.push({ element: group, x: cx, y: cy });
    picture.append(group);
  }
  rove(
    stops,
    stops.find((stop) => stop.element.classList.contains("own"))?.element ?? stops[stops.length - 1]?.element,
  );
  return picture;
}

const kindOf = (node: TraceNode): string =>
  ["token", "feature", "error", "logit"].includes(node.kind) ? node.kind : "feature";

function shape(trace: Trace, node: TraceNode, x: number, y: number, size: number): SVGElement[] {
  if (node.kind === "token" || node.kind === "logit") {
    const label = visible(node.kind === "token" ? trace.tokens[node.position] : node.label || trace.logits[0]?.[0], 12);
    const wide = Math.max(24, 7 * label.length + 12);
    return [
      svg("rect", { x: x - wide / 2, y: y - 11, width: wide, height: 22, rx: 6 }),
      svg("text", { x, y: y + 4, "text-anchor": "middle" }, label),
    ];
  }
  const radius = 4 + 7 * Math.min(1, size);
  if (node.kind === "error")
    return [
      svg("rect", {
        x: x - radius,
        y: y - radius,
        width: 2 * radius,
        height: 2 * radius,
        transform: `rotate(45 ${x} ${y})`,
      }),
    ];
  return [svg("circle", { cx: x, cy: y, r: radius })];
}

/** A column is at least as wide as its token; where a token has many nodes in a layer, they stand in several rows. */
function layOut(trace: Trace, layers: number, width: number) {
  const left = 30;
  const cells = new Map<string, TraceNode[]>();
  for (const node of trace.nodes) {
    const cell = `${node.position} ${Math.min(node.layer, layers)}`;
    cells.set(cell, [...(cells.get(cell) ?? []), node]);
  }
  const cellAt = (position: number, layer: number) => cells.get(`${position} ${layer}`) ?? [];
  const every = Array.from({ length: layers + 2 }, (_, i) => i - 1);
  const acrossOf = (nodes: TraceNode[]) =>
    nodes[0]?.kind === "logit"
      ? nodes.length
      : Math.min(nodes.length, Math.max(3, Math.ceil(Math.sqrt(1.5 * nodes.length))));
  const needs = trace.tokens.map((token, position) => {
    const outputs = cellAt(position, layers).map((node) => 7 * visible(node.label, 12).length + 24);
    const fullest = Math.max(1, ...every.map((layer) => acrossOf(cellAt(position, layer))));
    return Math.max(7 * visible(token, 12).length + 24, fullest * SLOT + 10, outputs.length * Math.max(0, ...outputs));
  });
  const spare = Math.max(0, width - left - needs.reduce((a, b) => a + b, 0)) / needs.length;
  let at = left;
  const columns = needs.map((need) => {
    const column = { left: at, wide: need + spare };
    at += column.wide;
    return column;
  });
  const least = Math.min(58, Math.max(40, 400 / (layers + 2)));
  const rowsOf = (nodes: TraceNode[]) => Math.ceil(nodes.length / Math.max(1, acrossOf(nodes)));
  const talls = every.map((layer) =>
    Math.max(least, 20 + SLOT * Math.max(...trace.tokens.map((_, position) => rowsOf(cellAt(position, layer))))),
  );
  const height = talls.reduce((a, b) => a + b, 0) + 24;
  const middles = talls.map((tall, i) => height - 24 - talls.slice(0, i).reduce((a, b) => a + b, 0) - tall / 2);
  const row = (layer: number): number => middles[Math.min(layer, layers) + 1] ?? 0;
  const places = new Map<string, { x: number; y: number }>();
  for (const nodes of cells.values()) {
    const column = columns[nodes[0]!.position] ?? { left, wide: 40 };
    const [across, rows] = [acrossOf(nodes), rowsOf(nodes)];
    const step = nodes[0]!.kind === "logit" ? column.wide / across : Math.min(SLOT + 4, column.wide / across);
    nodes.sort((a, b) => b.influence - a.influence);
    nodes.forEach((node, i) => {
      const many = Math.min(across, nodes.length - across * Math.floor(i / across)); // in this row
      places.set(node.id, {
        x: column.left + column.wide / 2 + ((i % across) - (many - 1) / 2) * step,
        y: row(node.layer) - (Math.floor(i / across) - (rows - 1) / 2) * SLOT,
      });
    });
  }
  return { places, row, whole: Math.max(at, 60), height, columns };
}
