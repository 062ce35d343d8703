// The attribution graph: a column for each token, a row for each layer; node size is influence, link width is flow.
import type { Trace, TraceLink, TraceNode } from "../data";
import { AttentionMaps } from "../maps/attention-maps";
import { svg, zoom } from "../ui/dom";
import { percent, visible } from "../ui/format";
import { onPress, rovingTabindex, type FocusTarget } from "../ui/keyboard";
import { tooltipOn } from "../ui/tooltip";
import { layOutGraph, type GraphLayout } from "./graph-layout";
import { linkName, nodeName } from "./node-names";
import { groupOf, type Group } from "./pins";

const CARRIED = 0.2; // share of a link's weight from which it is in the colour of the selected head

export interface GraphOptions {
  trace: Trace;
  width: number;
  links: number; // strongest links that are drawn; a selected node's are always drawn
  pick: string; // selected node, link or head
  selected: string; // head
  groups: Group[]; // of pinned nodes
  found: string[] | null; // nodes that were searched for
  title: string;
  select: (pick: string) => void;
}

export function traceGraph(options: GraphOptions): SVGSVGElement {
  const { trace, title } = options;
  const { layers } = AttentionMaps.of(trace.maps);
  const layout = layOutGraph(trace, layers, options.width);
  const { width, height } = layout;
  return svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width: width * zoom(),
      height: height * zoom(),
      class: "graph",
      role: "group",
      "aria-label": `Attribution graph of ${title}; arrow keys move through its nodes, Enter selects one`,
    },
    ...drawGrid(layout, layers),
    ...drawLinks(options, layout),
    ...drawNodes(options, layout),
  );
}

function drawGrid({ columns, rowY, height }: GraphLayout, layers: number): SVGElement[] {
  const tokens = columns.flatMap(({ left, width }, position) => {
    const text = { class: "tick", x: left + width / 2, y: rowY(-1) + 24, "text-anchor": "middle" };
    const number = svg("text", text, `${position + 1}`);
    if (position % 2 === 0) return [number];
    return [svg("rect", { class: "lane", x: left, y: 6, width, height: height - 12 }), number];
  });
  const labels = Array.from({ length: layers }, (_, layer) =>
    svg("text", { class: "tick", x: 2, y: rowY(layer) + 4 }, `L${layer}`),
  );
  return [...tokens, ...labels];
}

/** The strongest links, strongest last and so on top; those of the selection stand out. */
function drawLinks({ trace, links: count, pick, selected, select }: GraphOptions, { nodes }: GraphLayout): SVGElement[] {
  const { links } = trace;
  const [, kind, name] = /^(node|link):(.*)$/.exec(pick) ?? [];
  const isOwn = (i: number): boolean =>
    kind === "link" ? name === String(i) : kind === "node" && [links[i]!.source, links[i]!.target].includes(name!);
  const maxFlow = Math.max(1e-12, ...links.map((link) => link.flow));
  return [...links.keys()]
    .sort((a, b) => links[b]!.flow - links[a]!.flow)
    .filter((i, rank) => rank < count || isOwn(i))
    .reverse()
    .flatMap((i) => {
      const link = links[i]!;
      const [source, target] = [nodes.get(link.source), nodes.get(link.target)];
      if (!source || !target) return [];
      const middle = (source.y + target.y) / 2;
      const d = `M${source.x} ${source.y}C${source.x} ${middle} ${target.x} ${middle} ${target.x} ${target.y}`;
      const styles = [
        "link",
        link.weight < 0 && "minus",
        isOwn(i) && "own",
        kind && !isOwn(i) && "off",
        headShare(link, selected) > CARRIED && "carried",
      ];
      const element = svg(
        "g",
        { class: styles.filter(Boolean).join(" ") },
        svg("path", { class: "line", d, "stroke-width": 0.6 + 7 * Math.sqrt(link.flow / maxFlow) }),
        svg("path", { d, class: "touch" }),
      );
      element.addEventListener("click", () => select(`link:${i}`));
      tooltipOn(element, () => `${linkName(trace, link)}: ${percent(link.flow, 1)} of the output`);
      return [element];
    });
}

/** The share of a link's weight that a head carries. */
function headShare(link: TraceLink, head: string): number {
  const carried = link.heads.find(([name]) => name === head)?.[1] ?? 0;
  return Math.abs(carried) / Math.max(1e-12, Math.abs(link.weight));
}

function drawNodes({ trace, pick, groups, found, select }: GraphOptions, { nodes }: GraphLayout): SVGElement[] {
  const inner = trace.nodes.filter((node) => node.kind !== "logit");
  const maxInfluence = Math.max(1e-12, ...inner.map((node) => node.influence));
  const targets: FocusTarget[] = trace.nodes.map((node) => {
    const { x, y } = nodes.get(node.id)!;
    const isPicked = pick === `node:${node.id}`;
    const name = nodeName(trace, node);
    const label = node.label && node.kind === "feature" ? `, ${visible(node.label, 40)}` : "";
    const group = groupOf(groups, node.id);
    const styles = ["node", styleOf(node), isPicked && "own", group && "pinned", found && (found.includes(node.id) ? "found" : "faded")];
    const pin = group ? `, pinned${group.name ? ` in ${visible(group.name, 40)}` : ""}` : "";
    const element = svg(
      "g",
      {
        class: styles.filter(Boolean).join(" "),
        role: "button",
        "aria-pressed": String(isPicked),
        "aria-label": `${name}${label}, influence ${percent(node.influence, 1)}${pin}`,
      },
      shapeOf(trace, node, x, y, Math.sqrt(node.influence / maxInfluence)),
      labelOf(trace, node, x, y),
    );
    onPress(element, () => select(isPicked ? "" : `node:${node.id}`));
    tooltipOn(element, `${name}: influence ${percent(node.influence, 1)} of the output`);
    return { element, x, y };
  });
  const picked = targets.find(({ element }) => element.classList.contains("own"));
  rovingTabindex(targets, (picked ?? targets[targets.length - 1])?.element);
  return [...targets.map(({ element }) => element), ...groups.flatMap((group) => groupName(group, nodes))];
}

/** The name of a group above its highest node. */
function groupName({ name, nodes: ids }: Group, nodes: GraphLayout["nodes"]): SVGElement[] {
  const places = ids.flatMap((id) => nodes.get(id) ?? []);
  if (!name || !places.length) return [];
  const { x, y } = places.reduce((best, next) => (next.y < best.y ? next : best));
  return [svg("text", { class: "group-name", x, y: y - 15, "text-anchor": "middle" }, visible(name, 24))];
}

const styleOf = ({ kind }: TraceNode): string =>
  ["token", "feature", "error", "logit"].includes(kind) ? kind : "feature";

const hasLabel = ({ kind }: TraceNode): boolean => kind === "token" || kind === "logit";

const labelText = (trace: Trace, node: TraceNode): string =>
  visible(node.kind === "token" ? trace.tokens[node.position] : node.label || trace.logits[0]?.[0], 12);

const labelOf = (trace: Trace, node: TraceNode, x: number, y: number): SVGElement | null =>
  hasLabel(node) ? svg("text", { x, y: y + 4, "text-anchor": "middle" }, labelText(trace, node)) : null;

/** A box for tokens and outputs, a diamond for errors, a circle for features. */
function shapeOf(trace: Trace, node: TraceNode, x: number, y: number, size: number): SVGElement {
  if (hasLabel(node)) {
    const width = Math.max(24, 7 * labelText(trace, node).length + 12);
    return svg("rect", { x: x - width / 2, y: y - 11, width, height: 22, rx: 6 });
  }
  const radius = 4 + 7 * Math.min(1, size);
  if (node.kind !== "error") return svg("circle", { cx: x, cy: y, r: radius });
  const square = { x: x - radius, y: y - radius, width: 2 * radius, height: 2 * radius };
  return svg("rect", { ...square, transform: `rotate(45 ${x} ${y})` });
}
