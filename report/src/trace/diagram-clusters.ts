// The words that the attribution diagram shows as boxes (as edgewise.plots.trace_boxes), and their positions.
import type { Trace, WordCluster } from "../data";
import { visible } from "../ui/format";

const MAX_BOXES = 5;
const INFLUENCE = 0.9; // share of all clusters' influence that the boxes have, unless there are too many

export interface ClusterBox {
  lines: string[]; // none: only room for the arrow to the key's word
  words: number[]; // the positions it responds to
  positions: number[]; // of its features
  ofKey: boolean;
  direct: number; // the share of the output that comes straight from it
}

/** The words with most influence; always the key's own, or room for an arrow to the key's word. */
export function chooseBoxes(trace: Trace, key: number): ClusterBox[] {
  const ranked = trace.words ?? [];
  const own = ranked.find(({ words }) => words.includes(key));
  const total = ranked.reduce((sum, { influence }) => sum + influence, 0);
  const chosen: WordCluster[] = [];
  let sumBefore = 0;
  for (const cluster of ranked) {
    const maxBoxes = MAX_BOXES - (own && ![...chosen, cluster].includes(own) ? 1 : 0);
    if (sumBefore < INFLUENCE * total && chosen.length < maxBoxes) chosen.push(cluster);
    sumBefore += cluster.influence;
  }
  if (own && !chosen.includes(own)) chosen.push(own);
  const boxes = chosen.map(({ label, layers, words, positions, direct }, i) => {
    return { lines: [visible(label, 24), layers], words, positions, ofKey: chosen[i] === own, direct };
  });
  return own ? boxes : [...boxes, { lines: [], words: [key], positions: [key], ofKey: true, direct: 0 }];
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
