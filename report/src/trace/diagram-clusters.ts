// The clusters that the attribution diagram shows as boxes (as edgewise.plots.trace_boxes), and their positions.
import type { Cluster, Trace } from "../data";
import { visible } from "../ui/format";
import { layerRange, nodesById } from "./node-names";

const MAX_BOXES = 5;
const INFLUENCE = 0.8; // share of all clusters' influence that the boxes have, unless there are too many

export interface ClusterBox {
  lines: string[]; // none: only room for the arrow from the key's word
  words: number[]; // the positions it responds to
  positions: number[]; // of its features
  ofKey: boolean;
  direct: number; // the share of the output that comes straight from it
}

/** The clusters with most influence; always the key's own, or room for an arrow from the key's word. */
export function chooseBoxes(trace: Trace, key: number): ClusterBox[] {
  const own = keyCluster(trace, key);
  const ranked = byInfluence(trace);
  const total = ranked.reduce((sum, cluster) => sum + cluster.influence, 0);
  const chosen: Cluster[] = [];
  let sumBefore = 0;
  for (const cluster of ranked) {
    const maxBoxes = MAX_BOXES - ([...chosen, cluster].includes(own!) ? 0 : 1);
    if (sumBefore < INFLUENCE * total && chosen.length < maxBoxes) chosen.push(cluster);
    sumBefore += cluster.influence;
  }
  if (own && !chosen.includes(own)) chosen.push(own);
  const boxes = chosen.map((cluster) => boxOf(trace, cluster, cluster === own));
  return own ? boxes : [...boxes, { lines: [], words: [key], positions: [key], ofKey: true, direct: 0 }];
}

const byInfluence = (trace: Trace): Cluster[] => [...trace.clusters].sort((a, b) => b.influence - a.influence);

/** The cluster that responds to the key's word, at the key. */
function keyCluster(trace: Trace, key: number): Cluster | undefined {
  const nodes = nodesById(trace);
  return byInfluence(trace).find((cluster) =>
    cluster.nodes.some((id) => {
      const node = nodes.get(id);
      return node?.position === key && (node.kind === "token" || node.origin === key);
    }),
  );
}

/** The share of the output that is attributed to the embedding of the word at which the arrow begins. */
export function keyShare(trace: Trace, key: number): number {
  const positions = keyCluster(trace, key)
    ? trace.tokens.flatMap((token, i) => (token === trace.tokens[key] ? [i] : []))
    : [key];
  return positions.reduce((sum, position) => sum + (trace.origins[position] ?? 0), 0);
}

function boxOf(trace: Trace, cluster: Cluster, ofKey: boolean): ClusterBox {
  const nodes = nodesById(trace);
  const members = cluster.nodes.flatMap((id) => nodes.get(id) ?? []);
  const words = new Set(
    members.map((node) => (node.kind === "token" || node.origin === null ? node.position : node.origin)),
  );
  const toOutput = trace.strengths[trace.strengths.length - 1];
  return {
    lines: [visible(cluster.label || trace.tokens[Math.min(...words)], 24), layerRange(cluster)],
    words: [...words],
    positions: [...new Set(members.map((node) => node.position))],
    ofKey,
    direct: toOutput?.[trace.clusters.indexOf(cluster)] ?? 0,
  };
}

export interface Preference {
  centre: number;
  width: number;
  pull: number; // how strongly a box keeps its centre against its neighbours
}

/** Left edges of boxes: in order, without overlap, as near as possible to their centres, within `room`. */
export function spread(boxes: Preference[], room: number, gap: number): number[] {
  const widths = boxes.map(({ width }) => width);
  const before = widths.map((_, i) => widths.slice(0, i).reduce((a, b) => a + b, 0) + gap * i);
  const groups: { start: number; pull: number; count: number }[] = []; // boxes that touch move together
  boxes.forEach(({ centre, width, ...box }, i) => {
    let [start, pull, count] = [centre - width / 2 - before[i]!, box.pull, 1];
    while (groups.length && groups[groups.length - 1]!.start > start) {
      const other = groups.pop()!;
      start = (other.start * other.pull + start * pull) / (other.pull + pull);
      [pull, count] = [other.pull + pull, count + other.count];
    }
    groups.push({ start, pull, count });
  });
  const spare = Math.max(0, room - (before[before.length - 1] ?? 0) - (widths[widths.length - 1] ?? 0));
  const starts = groups.flatMap(({ start, count }) =>
    Array.from({ length: count }, () => Math.min(Math.max(0, start), spare)),
  );
  return starts.map((start, i) => start + before[i]!);
}
