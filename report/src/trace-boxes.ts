// Which clusters of a trace the diagram shows (as edgewise.figures.trace_boxes does), and where they stand.
import type { Cluster, Trace } from "./data";
import { layersOf, nodesById } from "./trace-names";
import { visible } from "./words";

const MOST = 5;
const INFLUENCE = 0.8;

export interface Box {
  lines: string[]; // none: only room for the arrow from the word itself
  words: number[]; // the positions it responds to
  stands: number[]; // where its features are
  ofKey: boolean;
  direct: number; // the share of the output that comes straight from it
}

/** The clusters with most influence; always the key's own, or room for an arrow from the key's word. */
export function chooseBoxes(trace: Trace, key: number): Box[] {
  const own = ownCluster(trace, key);
  const ranked = byInfluence(trace);
  const total = ranked.reduce((sum, each) => sum + each.influence, 0);
  const chosen: Cluster[] = [];
  let before = 0;
  for (const each of ranked) {
    const room = MOST - ([...chosen, each].includes(own!) ? 0 : 1);
    if (before < INFLUENCE * total && chosen.length < room) chosen.push(each);
    before += each.influence;
  }
  if (own && !chosen.includes(own)) chosen.push(own);
  const boxes = chosen.map((each) => boxOf(trace, each, each === own));
  return own ? boxes : [...boxes, { lines: [], words: [key], stands: [key], ofKey: true, direct: 0 }];
}

const byInfluence = (trace: Trace): Cluster[] => [...trace.clusters].sort((a, b) => b.influence - a.influence);

function ownCluster(trace: Trace, key: number): Cluster | undefined {
  const nodes = nodesById(trace);
  return byInfluence(trace).find((each) =>
    each.nodes.some((id) => {
      const node = nodes.get(id);
      return node?.position === key && (node.kind === "token" || node.origin === key);
    }),
  );
}

/** The share of the output that began as the embedding of the word at which the arrow begins. */
export function shareOfKey(trace: Trace, key: number): number {
  const places = ownCluster(trace, key)
    ? trace.tokens.flatMap((token, i) => (token === trace.tokens[key] ? [i] : []))
    : [key];
  return places.reduce((sum, place) => sum + (trace.origins[place] ?? 0), 0);
}

function boxOf(trace: Trace, cluster: Cluster, ofKey: boolean): Box {
  const nodes = nodesById(trace);
  const members = cluster.nodes.flatMap((id) => nodes.get(id) ?? []);
  const words = new Set(
    members.map((node) => (node.kind === "token" || node.origin === null ? node.position : node.origin)),
  );
  const stands = new Set(members.map((node) => node.position));
  const place = trace.clusters.indexOf(cluster);
  const direct = trace.strengths[trace.strengths.length - 1]?.[place] ?? 0;
  return {
    lines: [visible(cluster.label || trace.tokens[Math.min(...words)], 24), layersOf(cluster)],
    words: [...words],
    stands: [...stands],
    ofKey,
    direct,
  };
}

/** Lefts of boxes: as near as possible to where they belong, in their order, none on another. */
export function spread(centres: number[], widths: number[], pulls: number[], room: number, apart: number): number[] {
  const before = widths.map((_, i) => widths.slice(0, i).reduce((a, b) => a + b, 0) + apart * i);
  const groups: { place: number; pull: number; many: number }[] = []; // boxes that touch move together
  centres.forEach((centre, i) => {
    let [place, pull, many] = [centre - widths[i]! / 2 - before[i]!, pulls[i]!, 1];
    while (groups.length && groups[groups.length - 1]!.place > place) {
      const other = groups.pop()!;
      place = (other.place * other.pull + place * pull) / (other.pull + pull);
      [pull, many] = [other.pull + pull, many + other.many];
    }
    groups.push({ place, pull, many });
  });
  const spare = Math.max(0, room - (before[before.length - 1] ?? 0) - (widths[widths.length - 1] ?? 0));
  const starts = groups.flatMap(({ place, many }) =>
    Array.from({ length: many }, () => Math.min(Math.max(0, place), spare)),
  );
  return starts.map((start, i) => start + before[i]!);
}
