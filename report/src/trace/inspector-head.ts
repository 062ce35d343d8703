// A head in the inspector: its share of the output, its ablation, QK attribution and the links that it carries.
import type { QKAttribution, Trace } from "../data";
import { AttentionMaps, headName, parseHead, type Head } from "../maps/attention-maps";
import { mapImage } from "../maps/map-image";
import { el, svg, type Child } from "../ui/dom";
import { percent, signed } from "../ui/format";
import { ablation, bars, headFlows, title, type Bar, type Select } from "./inspector-elements";
import { linkName, nodesById, sourceName, tokenAt } from "./node-names";

const MAX_LINKS = 8;

export function inspectHead(trace: Trace, name: string, select: Select): Child[] {
  const at = parseHead(name)!;
  const maps = AttentionMaps.of(trace.maps);
  if (at.layer >= maps.layers || at.head >= maps.heads)
    return [title(name, "Head"), el("p", {}, "This model has no such head.")];
  const flow = headFlows(trace).find(([head]) => head === name)?.[1] ?? 0;
  const attributions = trace.looks.filter(({ layer, head }) => layer === at.layer && head === at.head);
  return [
    title(name, "Head"),
    el("p", {}, `It carries ${percent(flow, 1)} of the output.`),
    ablation(trace, name),
    ...attributions.map((attribution) => qkAttribution(trace, maps, attribution)),
    attributions.length ? null : noAttribution(trace),
    bars("Links by this head's share", carriedLinks(trace, name, select)),
  ];
}

/** The edge on the head's map, and the attribution of its attention score to pairs of sources. */
function qkAttribution(trace: Trace, maps: AttentionMaps, attribution: QKAttribution): HTMLElement {
  const { query, key, weight, score, pairs, rest } = attribution;
  const nodes = nodesById(trace);
  const edge = `${tokenAt(trace, query)} attends to ${tokenAt(trace, key)}`;
  const list = pairs.map(([querySource, keySource, value]): Bar => {
    const name = `${sourceName(trace, querySource, nodes)} × ${sourceName(trace, keySource, nodes)}`;
    return { name, value, text: signed(value, 1) };
  });
  return el(
    "div",
    { class: "look" },
    el(
      "div",
      {},
      smallMap(maps, attribution),
      el("p", {}, `${edge} with attention weight ${weight.toFixed(2)}; attention score ${signed(score, 1)}.`),
    ),
    bars("QK attribution of the score: source at the query × source at the key", [
      ...list,
      { name: "all other pairs", value: rest, text: signed(rest, 1) },
    ]),
  );
}

function smallMap(maps: AttentionMaps, { query, key, ...at }: Head & { query: number; key: number }): SVGSVGElement {
  const side = 96;
  const cell = side / maps.length;
  const mark = Math.max(3, cell);
  return svg(
    "svg",
    {
      viewBox: `0 0 ${side} ${side}`,
      width: side,
      height: side,
      class: "minimap",
      role: "img",
      "aria-label": `Attention map of ${headName(at)}`,
    },
    mapImage(maps, at.layer, at.head, { x: 0, y: 0, side }),
    svg("rect", { class: "markcell", x: key * cell, y: query * cell, width: mark, height: mark }),
  );
}

function noAttribution(trace: Trace): HTMLElement {
  const heads = [...new Set(trace.looks.map((attribution) => headName(attribution)))];
  const text = heads.length
    ? `QK attribution was computed for ${heads.join(", ")} only.`
    : "No QK attribution was computed.";
  return el("p", { class: "quiet" }, text);
}

function carriedLinks(trace: Trace, head: string, select: Select): Bar[] {
  return trace.links
    .flatMap((link, i) => {
      const carried = link.heads.find(([name]) => name === head)?.[1];
      if (carried === undefined) return [];
      return [{ link, i, flow: (carried / Math.max(1e-12, Math.abs(link.weight))) * link.flow }];
    })
    .sort((a, b) => Math.abs(b.flow) - Math.abs(a.flow))
    .slice(0, MAX_LINKS)
    .map(({ link, i, flow }) => ({
      name: linkName(trace, link),
      value: flow,
      text: percent(Math.abs(flow), 1),
      onclick: () => select(`link:${i}`),
    }));
}
